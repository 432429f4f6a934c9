"""The brokers that are offline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from minimq_common.model import BrokerData, Permission, QueueData
from minimq_nameserver.bounds import MAX_OFFLINE_TOPICS


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
        count = attrgetter("read_queues" if permission is Permission.READ else "write_queues")
        return sum(count(each) for each in topics if each.permission & permission)


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
        while len(self._by_name) > self._most or sum(len(each.topics) for each in self.all()) > MAX_OFFLINE_TOPICS:
            changed |= self.remove(next(iter(self._by_name))) or frozenset()
        return changed

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
        """Return the topics that a broker name carried before and does not carry now."""
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
