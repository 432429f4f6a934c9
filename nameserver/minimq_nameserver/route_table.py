"""The route table: which brokers there are, and which topics they carry.

Pure: it reads no clock and sends nothing. Times are arguments, in seconds of any clock that only goes forward;
what a call has changed is its return value, for the caller to tell whom it concerns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from minimq_common.errors import BrokerConflict, InvalidArgument
from minimq_common.model import MASTER_ID, BrokerData, Permission, QueueData, TopicRoute
from minimq_common.names import check_address, check_broker, check_cluster, check_topic


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Everything one broker tells about itself.

    Attributes:
        cluster: the cluster it belongs to.
        broker_name: the name it shares with its replicas.
        broker_id: 0 for the master, larger for a slave.
        address: HOST:PORT at which clients reach it.
        data_version: grows with every change of what it tells.
        permission: what may be done with all of its topics.
        topics: queue data by topic.

    Raises:
        InvalidArgument: a name, the address or a number breaks a rule that the text names.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    data_version: int
    permission: Permission
    topics: Mapping[str, QueueData]

    def __post_init__(self) -> None:
        check_cluster(self.cluster)
        check_broker(self.broker_name)
        check_address(self.address)
        if self.broker_id < 0:
            raise InvalidArgument(f"broker id {self.broker_id} of {self.broker_name}: it must not be negative")
        for topic, data in self.topics.items():
            check_topic(topic)
            if data.read_queues < 0 or data.write_queues < 0:
                raise InvalidArgument(f"topic {topic} of {self.broker_name}: a count of queues is negative")

    def __str__(self) -> str:
        return f"{self.broker_name} (id {self.broker_id}) at {self.address}"


@dataclass(frozen=True, slots=True)
class Change:
    """What a call has changed.

    Attributes:
        topics: topics whose route is another one now, or is gone.
        ended: sessions that have lost their place in the table, each with the reason.
    """

    topics: frozenset[str] = frozenset()
    ended: tuple[tuple[int, str], ...] = ()

    def __or__(self, other: Change) -> Change:
        return Change(self.topics | other.topics, self.ended + other.ended)


@dataclass(slots=True)
class _Replica:
    """One registered broker. The session is the stream over which it registered last."""

    state: BrokerState
    session: int
    last_seen: float


class RouteTable:
    """The registered brokers by name and id, and an index of their topics.

    What a topic's route says of a broker name comes from the replica with the lowest id, so it does not depend on the
    order in which the replicas registered. Without a master the queues can be read but not written.

    Not thread-safe: all calls come from one thread.
    """

    def __init__(self, expire_after_s: float) -> None:
        self._expire_after_s = expire_after_s
        self._brokers: dict[str, dict[int, _Replica]] = {}
        self._by_session: dict[int, _Replica] = {}
        self._by_address: dict[str, _Replica] = {}
        # Follows from the brokers: topic -> broker name -> queue data. Only `_reindex` writes it.
        self._topics: dict[str, dict[str, QueueData]] = {}

    def register(self, session: int, state: BrokerState, now: float) -> Change:
        """Put everything a broker tells into the table, in place of what it told before.

        The address is the identity: a broker that comes back with another id was promoted or demoted and loses its
        former id. Two addresses under one name and id are a conflict, which the larger data version wins; with equal
        versions the one that was there first stays, so that two brokers set up alike do not take turns.

        Args:
            session: the stream over which it came; a stream serves one broker.
            state: the whole table of the broker.
            now: the time.

        Raises:
            BrokerConflict: a live broker has the place; the table is as before.
            InvalidArgument: the stream was used by another broker before.
        """
        self._check_place(session, state)
        name = state.broker_name
        topics_before, broker_before = self._told_by(name)
        ended = []
        former = self._by_address.get(state.address)
        if former is not None:
            self._remove(former)
            if former.session != session:
                ended.append((former.session, f"broker {state} has registered anew"))
        loser = self._brokers.get(name, {}).get(state.broker_id)
        if loser is not None:
            self._remove(loser)
            ended.append((loser.session, f"replaced by {state}, which has newer data"))
        replica = _Replica(state, session, now)
        self._brokers.setdefault(name, {})[state.broker_id] = replica
        self._by_session[session] = self._by_address[state.address] = replica
        return Change(self._reindex(name, topics_before, broker_before), tuple(ended))

    def heartbeat(self, session: int, data_version: int, now: float) -> bool:
        """Note that a broker lives. False when it is not known with that version, and has to register anew."""
        replica = self._by_session.get(session)
        if replica is None or replica.state.data_version != data_version:
            return False
        replica.last_seen = now
        return True

    def unregister(self, session: int) -> Change:
        """Remove the broker that registered over a stream. Nothing happens when it has registered anew over another."""
        replica = self._by_session.get(session)
        if replica is None:
            return Change()
        name = replica.state.broker_name
        topics_before, broker_before = self._told_by(name)
        self._remove(replica)
        return Change(self._reindex(name, topics_before, broker_before))

    def expire(self, now: float) -> Change:
        """Remove the brokers that have been silent for too long."""
        change = Change()
        for session, replica in list(self._by_session.items()):
            silent_s = now - replica.last_seen
            if silent_s >= self._expire_after_s:
                reason = f"no heartbeat of {replica.state} for {silent_s:.1f} s"
                change |= self.unregister(session) | Change(ended=((session, reason),))
        return change

    def route(self, topic: str) -> TopicRoute | None:
        """Return where the queues of a topic are, sorted by broker name, or None when no broker carries it."""
        found = self._topics.get(topic)
        if found is None:
            return None
        names = sorted(found)
        return TopicRoute(
            topic=topic,
            queues=tuple(found[name] for name in names),
            brokers={name: self._broker_data(name) for name in names},
        )

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._topics)

    def brokers(self) -> list[BrokerData]:
        """Return all brokers, sorted by name."""
        return [self._broker_data(name) for name in sorted(self._brokers)]

    def broker(self, session: int) -> BrokerState | None:
        """Return what was registered over a stream, if it is still in the table."""
        replica = self._by_session.get(session)
        return replica.state if replica else None

    def master_of(self, broker_name: str) -> str | None:
        """Return the address of the master of a broker name, if there is one."""
        master = self._brokers.get(broker_name, {}).get(MASTER_ID)
        return master.state.address if master else None

    def _check_place(self, session: int, state: BrokerState) -> None:
        mine = self._by_session.get(session)
        if mine is not None and (mine.state.broker_name, mine.state.address) != (state.broker_name, state.address):
            raise InvalidArgument(f"broker {state} registers over the stream of {mine.state}: open a stream for each")
        former = self._by_address.get(state.address)
        if former is not None and former.state.broker_name != state.broker_name:
            raise BrokerConflict(
                f"broker {state} is refused: {former.state} has that address; "
                "give each broker an address of its own with --advertise"
            )
        others = {
            broker_id: replica.state
            for broker_id, replica in self._brokers.get(state.broker_name, {}).items()
            if replica is not former
        }
        for other in others.values():
            if other.cluster != state.cluster:
                raise BrokerConflict(
                    f"broker {state} of cluster {state.cluster} is refused: {other} belongs to cluster "
                    f"{other.cluster}; give one of them another --name"
                )
        incumbent = others.get(state.broker_id)
        if incumbent is not None and incumbent.data_version >= state.data_version:
            raise BrokerConflict(
                f"broker {state} is refused: {incumbent} is registered under that name and id, with data version "
                f"{incumbent.data_version} against {state.data_version}; give one of them another --name or --id"
            )

    def _told_by(self, name: str) -> tuple[dict[str, QueueData], BrokerData | None]:
        """Return what routes say of a broker name."""
        replicas = self._brokers.get(name)
        if not replicas:
            return {}, None
        leader_id = min(replicas)
        leader = replicas[leader_id].state
        allowed = leader.permission if leader_id == MASTER_ID else leader.permission & Permission.READ
        topics = {
            topic: data if data.permission in allowed else replace(data, permission=data.permission & allowed)
            for topic, data in leader.topics.items()
        }
        return topics, self._broker_data(name)

    def _broker_data(self, name: str) -> BrokerData:
        replicas = self._brokers[name]
        addresses = {broker_id: replicas[broker_id].state.address for broker_id in sorted(replicas)}
        return BrokerData(replicas[min(replicas)].state.cluster, name, addresses)

    def _remove(self, replica: _Replica) -> None:
        state = replica.state
        del self._by_session[replica.session]
        del self._by_address[state.address]
        del self._brokers[state.broker_name][state.broker_id]
        if not self._brokers[state.broker_name]:
            del self._brokers[state.broker_name]

    def _reindex(self, name: str, before: dict[str, QueueData], broker_before: BrokerData | None) -> frozenset[str]:
        """Bring the index up to date with one broker name. Returns the topics whose route has changed."""
        after, broker_after = self._told_by(name)
        for topic, data in after.items():
            self._topics.setdefault(topic, {})[name] = data
        for topic in before.keys() - after.keys():
            del self._topics[topic][name]
            if not self._topics[topic]:
                del self._topics[topic]
        if broker_before != broker_after:
            return frozenset(before.keys() | after.keys())
        return frozenset(topic for topic in before.keys() | after.keys() if before.get(topic) != after.get(topic))
