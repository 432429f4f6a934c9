"""The needs of staged batches in old segments."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from minimq_broker.features.feature import Pins
from minimq_broker.features.staged.staging import TAG
from minimq_broker.log.segment import Segment
from minimq_broker.state.queue_ends import BatchHeld
from minimq_broker.state.state import Effect


class StagedPins(Pins):
    """The batches that the saved state has: a restart, or a fail-over, may publish them."""

    def __init__(self, positions: Sequence[int]) -> None:
        self._positions = positions

    def keeps(self, effect: Effect, position: int) -> bool:
        return isinstance(effect, BatchHeld) and effect.tag == TAG and self._between(position, position + 1) > 0

    def bytes_in(self, segment: Segment) -> int:
        return self._between(segment.start, segment.end)  # at least one byte each

    def _between(self, start: int, end: int) -> int:
        return bisect_left(self._positions, end) - bisect_left(self._positions, start)
