"""Brokers without a place in the route table: those that are offline, and those in conflict with another broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minimq_common.model import BrokerData, Permission, QueueData
from minimq_nameserver.bounds import MAX_OFFLINE_TOPICS

if TYPE_CHECKING:
    from minimq_nameserver.route_table import BrokerState


@dataclass(frozen=True, slots=True)
class RememberedBroker:
    """A broker name with no registered replica, or registered with fewer topics than before."""

    broker: BrokerData
    topics: Mapping[str, QueueData]
    #: When its last replica left, in seconds of the caller's clock.
    since: float
    stopped: bool
    #: Whether it is registered again, without these topics.
    lacks_topics: bool = False

    def queues(self, permission: Permission, topic: str | None = None) -> int:
        """Return the number of its readable or writable queues, of one topic or of all."""
        topics = self.topics.values() if topic is None else (self.topics[topic],)
        counts = (each.read_queues if permission is Permission.READ else each.write_queues for each in topics)
        return sum(count for count, each in zip(counts, topics, strict=True) if each.permission & permission)


class OfflineBrokers:
    """Remembers the brokers that left last, by name. Not thread-safe."""

    def __init__(self, keep_s: float, most: int) -> None:
        self._keep_s = keep_s
        self._most = most
        self._by_name: dict[str, RememberedBroker] = {}  # in the order in which they left

    def add(self, offline: RememberedBroker) -> frozenset[str]:
        """Remember a broker that has left. Returns the other topics whose routes change."""
        if not self._keep_s:
            return frozenset()
        former = self._by_name.pop(offline.broker.broker_name, None)
        if former is not None:
            offline = replace(offline, topics={**former.topics, **offline.topics})
        self._by_name[offline.broker.broker_name] = offline
        changed = frozenset[str](former.topics if former is not None else ())
        while len(self._by_name) > self._most or self._number_of_topics() > MAX_OFFLINE_TOPICS:
            changed |= self.remove(next(iter(self._by_name))) or frozenset()
        return changed

    def _number_of_topics(self) -> int:
        return sum(len(offline.topics) for offline in self._by_name.values())

    def returned(self, broker_name: str, topics: Collection[str]) -> frozenset[str]:
        """Note that a broker has registered again. It stays remembered for the topics that it lacks."""
        offline = self._by_name.get(broker_name)
        if offline is None:
            return frozenset()
        missing = {topic: data for topic, data in offline.topics.items() if topic not in topics}
        if missing:
            self._by_name[broker_name] = replace(offline, topics=missing, lacks_topics=True)
        else:
            del self._by_name[broker_name]
        return frozenset(offline.topics.keys() - missing.keys() if offline.lacks_topics else offline.topics)

    def missing_from(self, broker_name: str) -> Collection[str]:
        offline = self._by_name.get(broker_name)
        return () if offline is None else offline.topics.keys()

    def remove(self, broker_name: str) -> frozenset[str] | None:
        """Forget a broker. Returns its remembered topics; None if it is not remembered."""
        offline = self._by_name.pop(broker_name, None)
        return None if offline is None else frozenset(offline.topics)

    def expire(self, now: float) -> frozenset[str]:
        """Forget the brokers that left too long ago. Returns their remembered topics."""
        over = [name for name, offline in self._by_name.items() if now - offline.since >= self._keep_s]
        return frozenset().union(*(self.remove(name) or () for name in over))

    def all(self) -> list[RememberedBroker]:
        """Return the remembered brokers, sorted by name. Thread-safe."""
        return [offline for _, offline in sorted(self._by_name.copy().items())]

    def of(self, topic: str) -> list[RememberedBroker]:
        """Return the brokers that carried a topic, sorted by name."""
        return [offline for offline in self.all() if topic in offline.topics] if self._by_name else []


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
