"""Finds the things that are due, in a time that does not depend on their number."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from minimq_broker.features.work_queues.pop_runs import NEVER

_SPARE = 64


class DueTimes:
    """Things by the time when they are due, in ms."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        #: May have outdated entries.
        self._heap: list[tuple[int, int]] = []

    def set(self, thing: int, due_ms: int | None) -> None:
        """Set when a thing is due; None: never."""
        if due_ms is None:
            self._times.pop(thing, None)
        elif self._times.get(thing) != due_ms:
            self._times[thing] = due_ms
            heappush(self._heap, (due_ms, thing))
        if len(self._heap) > 2 * len(self._times) + _SPARE:
            self._heap = [(due_ms, thing) for thing, due_ms in self._times.items()]
            heapify(self._heap)

    @property
    def first_ms(self) -> int:
        """When the first one is due, `NEVER` if none is."""
        heap = self._heap
        while heap and self._times.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER

    def due(self, now_ms: int) -> Iterator[int]:
        """Yield the things that are due, the longest due first."""
        seen: dict[int, int] = {}
        try:
            while self.first_ms <= now_ms:
                due_ms, thing = heappop(self._heap)
                if thing not in seen:
                    seen[thing] = due_ms
                    yield thing
        finally:
            for thing, due_ms in seen.items():
                heappush(self._heap, (due_ms, thing))
