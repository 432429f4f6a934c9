"""The sizes of topics in a segment, by log positions, counted once from the index rows."""

from __future__ import annotations

from collections import defaultdict

from minimq_broker.core.state import QueueKey
from minimq_broker.store.rows import position_in, size_in
from minimq_broker.store.segment import Segment

#: Slices of a segment of the usual size.
_SLICES = 64


class TopicSizes:
    """The sizes of topics in one segment. What is written to it later is counted when it is asked for."""

    def __init__(self, segment: Segment, segment_bytes: int) -> None:
        self.segment = segment
        self._slice_bytes = max(segment_bytes // _SLICES, 1)
        self._sizes: dict[int, dict[int, int]] = {}
        self._seen: dict[QueueKey, int] = {}
        self._is_final: set[int] = set()
        self._topics: frozenset[int] | None = None

    @property
    def topics(self) -> frozenset[int]:
        """The ids of the topics that have something in the sealed segment."""
        if self._topics is None:
            self._topics = frozenset(self.segment.topics())
        return self._topics

    def slices(self, topic_id: int) -> list[tuple[int, int]]:
        """Return slices with something of a topic, from the newest back: log position of the begin, and bytes."""
        if topic_id not in self._is_final:
            self._count(topic_id)
        found = self._sizes.get(topic_id, {})
        return [(self.segment.start + number * self._slice_bytes, found[number]) for number in sorted(found)[::-1]]

    def size_of(self, topic_id: int, before: int = 1 << 63) -> int:
        """Return the bytes of a topic in the slices that begin before a log position."""
        return sum(size for start, size in self.slices(topic_id) if start < before)

    def _count(self, topic_id: int) -> None:
        sealed = self.segment.sealed  # ahead of looking
        sizes = self._sizes.setdefault(topic_id, defaultdict(int))
        for queue in [*self.segment.queues_of(topic_id)]:
            for last, _, value in self.segment.values_of(queue, self._seen.get(queue, 0)):
                sizes[(position_in(value) - self.segment.start) // self._slice_bytes] += size_in(value)
                self._seen[queue] = last + 1
        if sealed:
            self._is_final.add(topic_id)
