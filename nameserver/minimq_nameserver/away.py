"""Brokers that have no place in the route table: those that have gone, and those whose place another one has.

Pure: times are arguments, in seconds of any clock that only goes forward.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minimq_common.model import BrokerData, Permission, QueueData
from minimq_nameserver.bounds import MAX_AWAY_TOPICS

if TYPE_CHECKING:
    from minimq_nameserver.route_table import BrokerState


@dataclass(frozen=True, slots=True)
class RememberedBroker:
    """A broker name none of whose replicas is registered any more, or only with fewer topics than before."""

    broker: BrokerData
    topics: Mapping[str, QueueData]
    #: When its last replica was gone, in seconds of the caller's clock.
    since: float
    stopped: bool

    @property
    def queues(self) -> int:
        """The number of its queues that could be read."""
        return sum(map(_readable, self.topics.values()))

    def queues_of(self, topic: str) -> int:
        """Return the number of queues of one topic that could be read."""
        return _readable(self.topics[topic])


class AwayBrokers:
    """The brokers that went last, by name. Not thread-safe."""

    def __init__(self, keep_s: float, most: int) -> None:
        self._keep_s = keep_s
        self._most = most
        self._by_name: dict[str, RememberedBroker] = {}  # the one that went last is at the end

    def add(self, away: RememberedBroker) -> frozenset[str]:
        """Remember a broker that has gone. Returns the topics of those that are forgotten for it.

        What one of that name did not carry any more when it came back is still missing, too.
        """
        if not self._keep_s:
            return frozenset()
        former = self._by_name.pop(away.broker.broker_name, None)
        if former is not None:
            away = replace(away, topics={**former.topics, **away.topics})
        self._by_name[away.broker.broker_name] = away
        forgotten = frozenset[str]()
        while len(self._by_name) > self._most or self._number_of_topics() > MAX_AWAY_TOPICS:
            forgotten |= self.remove(next(iter(self._by_name))) or frozenset()
        return forgotten

    def _number_of_topics(self) -> int:
        return sum(len(away.topics) for away in self._by_name.values())

    def returned(self, broker_name: str, topics: Collection[str]) -> frozenset[str]:
        """Note that a broker is there again with some topics; it stays remembered for those that it lacks.

        Returns the topics that it carried and carries again.
        """
        away = self._by_name.get(broker_name)
        if away is None:
            return frozenset()
        missing = {topic: data for topic, data in away.topics.items() if topic not in topics}
        if missing:
            self._by_name[broker_name] = replace(away, topics=missing)
        else:
            del self._by_name[broker_name]
        return frozenset(away.topics.keys() - missing.keys())

    def missing_from(self, broker_name: str) -> Collection[str]:
        """Return the topics that are remembered of a broker name."""
        away = self._by_name.get(broker_name)
        return () if away is None else away.topics.keys()

    def remove(self, broker_name: str) -> frozenset[str] | None:
        """Forget a broker. Returns the topics that it carried, or None when it is not remembered."""
        away = self._by_name.pop(broker_name, None)
        return None if away is None else frozenset(away.topics)

    def expire(self, now: float) -> frozenset[str]:
        """Forget the brokers that went too long ago. Returns the topics that they carried."""
        over = [name for name, away in self._by_name.items() if now - away.since >= self._keep_s]
        return frozenset().union(*(self.remove(name) or () for name in over))

    def all(self) -> list[RememberedBroker]:
        """Return the brokers that are remembered, sorted by name; any thread may ask."""
        return [away for _, away in sorted(self._by_name.copy().items())]

    def of(self, topic: str) -> list[RememberedBroker]:
        """Return the brokers that carried a topic, sorted by name."""
        return [away for away in self.all() if topic in away.topics] if self._by_name else []


def _readable(data: QueueData) -> int:
    return data.read_queues if data.permission & Permission.READ else 0


#: How many conflicts are remembered; of more, the latest.
MOST_KEPT = 20
#: Seconds for which a conflict is shown that is not seen again. A refused broker tries every second, so one that is
#: silent for so long has been stopped, or set up anew.
KEPT_S = 300.0


@dataclass(frozen=True, slots=True)
class Conflict:
    """One broker that was refused, or replaced by another."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    holder_address: str
    reason: str
    #: When it was seen first, in seconds of the caller's clock.
    first_at: float
    last_at: float
    times: int


class ConflictLog:
    """The conflicts of the last minutes, one for each broker name and address. Not thread-safe.

    A conflict is over when the broker has a place after all, or when it was not seen for `KEPT_S`.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Conflict] = {}  # the one that was seen last is at the end

    def note(self, loser: BrokerState, holder: BrokerState, reason: str, now: float) -> None:
        """Remember that a broker was refused or replaced."""
        key = loser.broker_name, loser.address
        known = self._seen.pop(key, None)
        self._seen[key] = Conflict(
            cluster=loser.cluster,
            broker_name=loser.broker_name,
            broker_id=loser.broker_id,
            address=loser.address,
            holder_address=holder.address,
            reason=reason,
            first_at=known.first_at if known else now,
            last_at=now,
            times=known.times + 1 if known else 1,
        )
        while len(self._seen) > MOST_KEPT:
            del self._seen[next(iter(self._seen))]

    def settle(self, registered: BrokerState) -> None:
        """Forget the conflict of a broker that has a place now, also one that it had under another name."""
        self._seen = {
            (name, address): conflict
            for (name, address), conflict in self._seen.items()
            # Two names for one address: that the holder registers again does not settle it.
            if address != registered.address
            or (name != registered.broker_name and conflict.holder_address == registered.address)
        }

    def recent(self, now: float) -> list[Conflict]:
        """Return the open conflicts, the one that was seen last at the end; any thread may ask."""
        return [conflict for conflict in self._seen.copy().values() if now - conflict.last_at < KEPT_S]
