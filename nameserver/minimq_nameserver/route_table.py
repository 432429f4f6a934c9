"""The route table: the registered brokers and their topics."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import compress
from operator import is_not

from minimq_common.errors import BrokerConflict, InvalidArgument, SystemBusy
from minimq_common.model import BrokerData, Permission, QueueData, TopicRoute
from minimq_common.names import check_address, check_broker, check_cluster
from minimq_nameserver.bounds import MAX_CARRIED, MAX_OFFLINE_BROKERS, MAX_REGISTERED_BROKERS, MAX_ROUTED_TOPICS
from minimq_nameserver.offline_brokers import OfflineBrokers, RememberedBroker

#: Follows the name of a broker whose place another one wants. The time is the keepalive of the name server.
TAKEN = (
    "is connected and has that name and id; give one of them another --name or --id, or do not start a copy of its "
    "data directory in this cluster. If its machine is gone, start this broker again after 80 s"
)
#: Retry delay for a broker that is rejected because the table is full.
_BUSY_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class BrokerState:
    cluster: str
    broker_name: str
    #: 0 for the master, positive for a slave.
    broker_id: int
    address: str
    data_version: int
    #: Upper bound of the permission of each of its topics.
    permission: Permission
    #: Queue data by topic. Not checked here, since there may be many: the reader of the request does that. Immutable.
    topics: Mapping[str, QueueData]
    #: With a controller, the replica whose role `broker_id` shows; None: the same as `broker_id`.
    replica_id: int | None = None
    #: Identifies one start of the broker.
    run: int = 0

    def __post_init__(self) -> None:
        check_cluster(self.cluster)
        check_broker(self.broker_name)
        check_address(self.address)
        if self.broker_id < 0:
            raise InvalidArgument(f"broker id {self.broker_id} of {self.broker_name}: it must not be negative")

    def __str__(self) -> str:
        return f"{self.broker_name} (id {self.broker_id}) at {self.address}"

    @property
    def place(self) -> Place:
        """The place that only one process may hold."""
        return self.broker_name, self.broker_id if self.replica_id is None else self.replica_id


#: Broker name and replica id.
Place = tuple[str, int]


#: Maximum remembered conflicts; the latest ones stay.
MAX_CONFLICTS = 20
#: A conflict expires if it does not recur for this long. A rejected broker retries every second, so by then it was
#: stopped or reconfigured.
CONFLICT_EXPIRY_S = 300.0


@dataclass(frozen=True, slots=True)
class Conflict:
    """A broker that was rejected or replaced because of another one, the holder."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    holder_address: str
    holder_run: int
    reason: str
    #: In seconds of the caller's clock, as `last_at`.
    first_at: float
    last_at: float
    times: int


class ConflictLog:
    """The conflicts of the last minutes, one for each broker name and address. Not thread-safe."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Conflict] = {}  # ordered by `last_at`

    def note(self, loser: BrokerState, holder: BrokerState, reason: str, now: float) -> None:
        key = loser.broker_name, loser.address
        known = self._seen.pop(key, None)
        self._seen[key] = Conflict(
            cluster=loser.cluster,
            broker_name=loser.broker_name,
            broker_id=loser.broker_id,
            address=loser.address,
            holder_address=holder.address,
            holder_run=holder.run,
            reason=reason,
            first_at=known.first_at if known else now,
            last_at=now,
            times=known.times + 1 if known else 1,
        )
        while len(self._seen) > MAX_CONFLICTS:
            del self._seen[next(iter(self._seen))]

    def settle(self, registered: BrokerState) -> None:
        """Forget the conflicts of a broker that is registered now, also under another name."""
        self._seen = {
            (name, address): conflict
            for (name, address), conflict in self._seen.items()
            # If two brokers claim one address, a new registration of the holder does not end the conflict.
            if address != registered.address
            or (conflict.holder_address == registered.address and conflict.holder_run == registered.run)
        }

    def recent(self, now: float) -> list[Conflict]:
        """Return the open conflicts, ordered by `last_at`. Thread-safe."""
        return [conflict for conflict in self._seen.copy().values() if now - conflict.last_at < CONFLICT_EXPIRY_S]


@dataclass(frozen=True, slots=True)
class RouteFact:
    """The topics and addresses of one broker name, as routes show them. Immutable."""

    topics: Mapping[str, QueueData]
    broker: BrokerData


@dataclass(frozen=True, slots=True)
class Change:
    #: Topics whose route has changed or is gone.
    topics: Set[str] = frozenset()
    #: Sessions that have lost their registration, with the reason.
    ended: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class _Registration:
    state: BrokerState
    #: The number of the stream over which the broker registered last.
    session: int
    last_seen: float


class RouteTable:
    """The registered brokers by name and id, and an index of their topics."""

    def __init__(
        self, expire_after_s: float, remember_offline_s: float = 0.0, remember_offline: int = MAX_OFFLINE_BROKERS
    ) -> None:
        self.expire_after_s = expire_after_s
        self._carried = 0
        self.offline = OfflineBrokers(remember_offline_s, remember_offline)
        self._brokers: dict[str, dict[int, _Registration]] = {}
        self._by_session: dict[int, _Registration] = {}
        self._by_address: dict[str, _Registration] = {}
        #: Brokers that were lately rejected or replaced and not registered since.
        self.conflicts = ConflictLog()
        # Both derive from the brokers, and only `_reindex` writes them: what routes say of each broker name, and the
        # broker names that carry each topic.
        self._told: dict[str, RouteFact] = {}
        self._carriers: dict[str, set[str]] = {}

    def register(self, session: int, state: BrokerState, now: float) -> Change:
        """Add a broker, or replace its former registration. Raises `BrokerConflict` and `SystemBusy`.

        Place and run are the identity: a run that returns with another id was promoted or demoted and loses its former
        id. Another run in the place is a conflict until its registration ends. If two replicas are masters, as after a
        fail-over, the larger data version wins, which contains the term.
        """
        former = self._in_place(state.place)
        self._check_place(session, state, former, now)
        self._check_room(state, former)
        name = state.broker_name
        ended = []
        if former is not None:
            self._remove(former)
            if former.session != session:
                ended.append((former.session, f"broker {state} has registered again"))
        loser = self._brokers.get(name, {}).get(state.broker_id)
        if loser is not None:
            self._remove(loser)
            reason = f"broker {loser.state} was replaced by {state}, which has newer data"
            self.conflicts.note(loser.state, state, reason, now)
            ended.append((loser.session, reason))
        replica = _Registration(state, session, now)
        self._brokers.setdefault(name, {})[state.broker_id] = replica
        self._carried += len(state.topics)
        self._by_session[session] = self._by_address[state.address] = replica
        self.conflicts.settle(state)
        changed = self._reindex(name)
        return Change(changed | self.offline.returned(name, self._told[name].topics), tuple(ended))

    def heartbeat(self, session: int, data_version: int, now: float) -> bool:
        """Note that a broker is alive. False if it is not registered with that version, so it must register again."""
        replica = self._by_session.get(session)
        if replica is None or replica.state.data_version != data_version:
            return False
        replica.last_seen = now
        return True

    def unregister(self, session: int, now: float, *, stopped: bool = False) -> Change:
        """Remove the broker of a stream, unless it has registered over another stream since."""
        replica = self._by_session.get(session)
        if replica is None:
            return Change()
        self._remove(replica)
        return Change(self._gone(replica.state.broker_name, now, stopped=stopped))

    def expire(self, now: float) -> Change:
        """Remove brokers that have been silent for too long, and forget those that went offline too long ago."""
        silent = [each for each in self._by_session.values() if now - each.last_seen >= self.expire_after_s]
        last_seen: dict[str, float] = {}
        for replica in silent:
            self._remove(replica)
            name = replica.state.broker_name
            last_seen[name] = max(replica.last_seen, last_seen.get(name, replica.last_seen))
        changed = [self._gone(name, since, stopped=False) for name, since in last_seen.items()]
        forgotten = self.offline.expire(now)
        return Change(
            frozenset().union(*changed, forgotten),
            tuple(
                (replica.session, f"no heartbeat of {replica.state} for {now - replica.last_seen:.1f} s")
                for replica in silent
            ),
        )

    def forget(self, broker_name: str) -> Change | None:
        """Forget a broker that is offline and will not return; None if there is nothing to forget."""
        topics = self.offline.remove(broker_name)
        if topics is None and broker_name in self._told:
            raise InvalidArgument(f"broker {broker_name} is registered: stop it before it is forgotten")
        return None if topics is None else Change(topics)

    def offline_topics(self) -> Iterator[str]:
        """Yield the topics all of whose brokers are offline, once for each broker, in no order."""
        for offline in self.offline.all():
            for topic in offline.topics:
                if topic not in self._carriers:
                    yield topic

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, sorted by broker name; None if no broker carries the topic."""
        names = sorted(self._carriers.get(topic, ()))
        if not names:
            return None
        return TopicRoute(
            topic=topic,
            queues=tuple(self._told[name].topics[topic] for name in names),
            brokers={name: self._told[name].broker for name in names},
        )

    def topics(self) -> Collection[str]:
        """Return a live view of the names of all topics, in no order."""
        return self._carriers.keys()

    def brokers(self) -> list[BrokerData]:
        """Return all brokers, sorted by name."""
        return [self._told[name].broker for name in sorted(self._told)]

    def registered(self) -> list[BrokerState]:
        """Return the registrations of all brokers. Thread-safe."""
        return [replica.state for replica in self._by_session.copy().values()]

    def versions(self) -> dict[tuple[str, int], int]:
        """Return the data versions of all brokers by name and id, sorted."""
        return {
            (name, broker_id): self._brokers[name][broker_id].state.data_version
            for name in sorted(self._brokers)
            for broker_id in sorted(self._brokers[name])
        }

    def holder(self, place: Place, run: int) -> tuple[int, BrokerState] | None:
        replica = self._in_place(place)
        return None if replica is None or replica.state.run == run else (replica.session, replica.state)

    def broker(self, session: int) -> BrokerState | None:
        replica = self._by_session.get(session)
        return replica.state if replica else None

    def _in_place(self, place: Place) -> _Registration | None:
        replicas = self._brokers.get(place[0], {}).values()
        return next((replica for replica in replicas if replica.state.place == place), None)

    def _check_place(self, session: int, state: BrokerState, former: _Registration | None, now: float) -> None:
        mine = self._by_session.get(session)
        if mine is not None and (mine is not former or mine.state.run != state.run):
            raise InvalidArgument(f"broker {state} registers over the stream of {mine.state}: open a stream for each")
        rival = next(self._rivals(state, former), None)
        if rival is not None:
            other, remedy = rival
            reason = f"broker {state} is rejected: {other} {remedy}"
            self.conflicts.note(state, other, reason, now)
            raise BrokerConflict(reason)

    def _check_room(self, state: BrokerState, former: _Registration | None) -> None:
        known = former.state.topics if former is not None else {}
        added = state.topics.keys() - known.keys() if known else state.topics.keys()
        if former is not None and not added:
            return
        if former is None and len(self._by_session) >= MAX_REGISTERED_BROKERS:
            raise _full(state, f"{MAX_REGISTERED_BROKERS} brokers are registered")
        if self._carried - len(known) + len(state.topics) > MAX_CARRIED:
            raise _full(state, f"all brokers together carry {self._carried} topics, and the limit is {MAX_CARRIED}")
        routed = len(self._carriers) + sum(1 for topic in added if topic not in self._carriers)
        if routed > MAX_ROUTED_TOPICS:
            raise _full(state, f"there are {len(self._carriers)} topics, and the limit is {MAX_ROUTED_TOPICS}")

    def _rivals(self, state: BrokerState, former: _Registration | None) -> Iterator[tuple[BrokerState, str]]:
        if former is not None and former.state.run != state.run:
            yield former.state, TAKEN
        neighbour = self._by_address.get(state.address)
        if neighbour is not None and neighbour is not former:
            yield neighbour.state, "has that address; give each broker an address of its own with --advertise"
        others = {
            broker_id: replica.state
            for broker_id, replica in self._brokers.get(state.broker_name, {}).items()
            if replica is not former
        }
        for other in others.values():
            if other.cluster != state.cluster:
                yield other, f"belongs to cluster {other.cluster}, not {state.cluster}; give one of them another --name"
        incumbent = others.get(state.broker_id)
        if incumbent is not None and incumbent.data_version >= state.data_version:
            yield (
                incumbent,
                "is registered as master, with data version "
                f"{incumbent.data_version} against {state.data_version}: it waits until that one has left",
            )

    def _tell(self, name: str) -> RouteFact | None:
        replicas = self._brokers.get(name)
        if not replicas:
            return None
        leader_id = min(replicas)
        leader = replicas[leader_id].state
        addresses = {broker_id: replicas[broker_id].state.address for broker_id in sorted(replicas)}
        return RouteFact(_restrict(leader.topics, leader.permission), BrokerData(leader.cluster, name, addresses))

    def _remove(self, replica: _Registration) -> None:
        state = replica.state
        self._carried -= len(state.topics)
        del self._by_session[replica.session]
        del self._by_address[state.address]
        del self._brokers[state.broker_name][state.broker_id]
        if not self._brokers[state.broker_name]:
            del self._brokers[state.broker_name]

    def _gone(self, name: str, since: float, *, stopped: bool) -> Set[str]:
        told = self._told.get(name)
        changed = self._reindex(name)
        if told is None or name in self._told:
            return changed
        return changed | self.offline.add(RememberedBroker(told.broker, told.topics, since, stopped))

    def _reindex(self, name: str) -> Set[str]:
        told, telling = self._told.pop(name, None), self._tell(name)
        if telling is not None:
            self._told[name] = telling
        before = told.topics if told else {}
        after = telling.topics if telling else {}
        gone = before.keys() - after.keys()
        for topic in gone:
            self._carriers[topic].discard(name)
            if not self._carriers[topic]:
                del self._carriers[topic]
        for topic in after.keys() - before.keys():
            self._carriers.setdefault(topic, set()).add(name)
        if told is None or telling is None or told.broker != telling.broker:
            return before.keys() | after.keys()
        others = compress(after, map(is_not, map(before.get, after), after.values()))  # quickly skips identical objects
        return gone | {topic for topic in others if before.get(topic) != after[topic]}


def _full(state: BrokerState, why: str) -> SystemBusy:
    return SystemBusy(
        f"broker {state} with {len(state.topics)} topics has no room here: {why}; remove brokers or topics that are "
        "not needed, or run a second cluster with name servers of its own",
        retry_after_s=_BUSY_RETRY_S,
    )


def _restrict(topics: Mapping[str, QueueData], allowed: Permission) -> Mapping[str, QueueData]:
    if allowed == Permission.READ_WRITE:
        return topics
    return {topic: _restrict_one(data, allowed) for topic, data in topics.items()}


@functools.lru_cache(maxsize=1 << 12)
def _restrict_one(data: QueueData, allowed: Permission) -> QueueData:
    return replace(data, permission=data.permission & allowed)
