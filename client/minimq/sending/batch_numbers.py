"""Sequence numbers of a producer's batches, and which of them may still be sent again."""

from __future__ import annotations

from typing import NamedTuple


class BatchNumber(NamedTuple):
    """The number of a batch.

    Attributes:
        sequence: one more than that of the batch before.
        unsettled: how many numbers before this one may still be sent again. Brokers forget what is older.
    """

    sequence: int
    unsettled: int


class BatchNumbers:
    """Gives out numbers. Not thread-safe: guarded by the lock of its owner."""

    def __init__(self) -> None:
        self._next = 0
        self._unsettled: dict[int, None] = {}  # a set that keeps its order, so that the first is the oldest

    def begin(self) -> BatchNumber:
        """Return the number for a new batch."""
        sequence = self._next
        self._next += 1
        self._unsettled[sequence] = None
        return BatchNumber(sequence, sequence - next(iter(self._unsettled)))

    def settle(self, sequence: int) -> None:
        """Note that the batch will not be sent again: it is stored, or was given up. Idempotent."""
        self._unsettled.pop(sequence, None)
