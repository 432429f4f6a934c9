"""The sizes of topics in the segments of a log."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from minimq_broker.log.rows import position_in, size_in
from minimq_broker.log.segment import Segment
from minimq_broker.state.queue_ends import QueueKey

#: Slices per segment of the usual size.
_SLICES = 64


@dataclass(slots=True)
class _Counted:
    """The bytes of a topic in a segment, by slice."""

    #: `Segment.changes` when it was counted; the end of each queue at that time.
    changes: int = -1
    seen: dict[QueueKey, int] = field(default_factory=dict)
    slices: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


class TopicSizes:
    """Counts on demand, including what was written since the last count. Used by one thread at a time."""

    def __init__(self, segment_bytes: int = 1 << 30) -> None:
        self._slice_bytes = max(segment_bytes // _SLICES, 1)
        self._counted: WeakKeyDictionary[Segment, defaultdict[int, _Counted]] = WeakKeyDictionary()

    def slices(self, segment: Segment, topic_id: int) -> list[tuple[int, int]]:
        """Return begin (log position) and bytes of each slice with batches of a topic, newest first."""
        counted = self._counted.setdefault(segment, defaultdict(_Counted))[topic_id]
        changes = segment.changes  # before counting, as more may be written during it
        if counted.changes != changes:
            self._count(segment, topic_id, counted)
            counted.changes = changes
        numbers = sorted(counted.slices, reverse=True)
        return [(segment.start + number * self._slice_bytes, counted.slices[number]) for number in numbers]

    def size_of(self, segment: Segment, topic_id: int, before: int = 1 << 63) -> int:
        """Return the bytes of a topic in the slices that begin before a log position."""
        return sum(size for start, size in self.slices(segment, topic_id) if start < before)

    def _count(self, segment: Segment, topic_id: int, counted: _Counted) -> None:
        for queue in [*segment.queues_of(topic_id)]:
            for last, _, value in segment.values_of(queue, counted.seen.get(queue, 0)):
                counted.slices[(position_in(value) - segment.start) // self._slice_bytes] += size_in(value)
                counted.seen[queue] = last + 1
