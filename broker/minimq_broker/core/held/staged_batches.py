"""Values about transactions: staged batches, and how transactions ended."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

import msgspec


class TransactionId(NamedTuple):
    """A transaction; the numbers of transactions with the same name grow, except those of half messages."""

    name: str
    number: int


class StagedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A staged batch: log position and size of its entry, its target queue, and its number."""

    position: int
    size: int
    topic_id: int
    queue_id: int
    stored_ms: int
    producer_id: int
    sequence: int


size_of = attrgetter("size")
_SEQUENCE_OF = attrgetter("sequence")


class HalfOutcome(IntEnum):
    """The end of a transaction with half messages."""

    COMMITTED = 1
    ROLLED_BACK = 2
    #: Not decided in time, or some of its batches were lost.
    EXPIRED = 3

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


class BatchStaged(NamedTuple):
    """The effect of a batch that was staged; producer id and sequence are those of the batch header."""

    transaction: TransactionId
    producer_id: int
    sequence: int
    batch: StagedBatch


class StageKey(NamedTuple):
    """One producer in one transaction."""

    name: str
    number: int
    producer_id: int


class Stage(msgspec.Struct, array_like=True):
    """The batches that one producer has staged for an undecided transaction; also its row in the checkpoint."""

    batches: dict[int, StagedBatch] = {}
    #: Another broker may already have decided the transaction, so it does not expire early.
    prepared: bool = False

    @property
    def size(self) -> int:
        """Total size of the entries in bytes."""
        return sum(map(size_of, self.batches.values()))

    @property
    def in_order(self) -> list[StagedBatch]:
        """The batches, in the order in which they were sent. Any thread may read this."""
        return sorted(self.batches.copy().values(), key=_SEQUENCE_OF)

    @property
    def began_ms(self) -> int:
        """When its first batch was staged, in ms since 1970. Any thread may read this."""
        return min((batch.stored_ms for batch in self.batches.copy().values()), default=0)

    @property
    def newest_ms(self) -> int:
        """When its latest batch was staged, in ms since 1970; 0 without batches."""
        return max((batch.stored_ms for batch in self.batches.values()), default=0)


class OpenHalf(NamedTuple):
    """An undecided transaction with half messages: its only producer, and the batches that this has staged."""

    producer_id: int
    stage: Stage


class Ending(msgspec.Struct, array_like=True):
    """The end of the latest decided transaction of a name; also its row in the checkpoint."""

    at: int = 0
    number: int = -1
    decision: bytes = b""
    #: To be published in this order; starts with what earlier transactions of the name have left.
    batches: list[StagedBatch] = []
    #: How many of them are published or skipped.
    published: int = 0

    @property
    def waiting(self) -> Iterator[StagedBatch]:
        """The batches that are still to be published."""
        return map(self.batches.__getitem__, range(self.published, len(self.batches)))
