"""The needs of transactions in old segments."""

from __future__ import annotations

from bisect import bisect_left

from minimq_broker.features.feature import Pins
from minimq_broker.features.staged.staging import BatchStaged
from minimq_broker.features.staged.transactions import TransactionTable
from minimq_broker.log.segment import Segment
from minimq_broker.state.state import Effect


class StagedPins(Pins):
    """The batches that wait for a decision or for their publication."""

    def __init__(self, table: TransactionTable, *, leads: bool) -> None:
        self._table, self._leads = table, leads
        self._staged, self._decided_from = table.saved_positions, table.needed_from

    def floor(self) -> int:
        return min(self._decided_from, self._table.open_from(halves_only=self._leads))

    def keeps(self, effect: Effect, position: int) -> bool:
        return isinstance(effect, BatchStaged) and (
            position >= self._decided_from or self._between(position, position + 1) > 0
        )

    def bytes_in(self, segment: Segment) -> int:
        return self._between(segment.start, segment.end) + (segment.end > self._decided_from)

    def _between(self, start: int, end: int) -> int:
        return bisect_left(self._staged, end) - bisect_left(self._staged, start)
