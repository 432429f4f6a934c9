"""Values about transactions: what is staged for them, and how they ended."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

import msgspec


class TransactionId(NamedTuple):
    """One of a row of transactions of the same name; their numbers grow."""

    name: str
    number: int


class StagedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch that is staged: where its entry is in the log, the size of that, where it is to go, and its number."""

    position: int
    size: int
    topic_id: int
    queue_id: int
    stored_ms: int
    producer_id: int
    sequence: int


#: Bytes of the entry of a staged batch; and its number.
size_of = attrgetter("size")
_SEQUENCE_OF = attrgetter("sequence")


class HalfOutcome(IntEnum):
    """The end of a transaction with half messages."""

    COMMITTED = 1
    ROLLED_BACK = 2
    #: It was not decided in time, or some of its batches were lost.
    EXPIRED = 3

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


class BatchStaged(NamedTuple):
    """The effect of an entry with a staged batch; producer id and sequence as in the header of the batch."""

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
    #: Its transaction may be decided elsewhere by now, so it does not expire early.
    prepared: bool = False

    @property
    def size(self) -> int:
        """Bytes of the entries."""
        return sum(map(size_of, self.batches.values()))

    @property
    def in_order(self) -> list[StagedBatch]:
        """The batches, in the order in which they were sent. Any thread may ask."""
        return sorted(self.batches.copy().values(), key=_SEQUENCE_OF)

    @property
    def began_ms(self) -> int:
        """When its first batch was staged, in ms since 1970. Any thread may ask."""
        return min((batch.stored_ms for batch in self.batches.copy().values()), default=0)

    @property
    def newest_ms(self) -> int:
        """When something was last staged, in ms since 1970; 0 when nothing is left."""
        return max((batch.stored_ms for batch in self.batches.values()), default=0)


class OpenHalf(NamedTuple):
    """A transaction with half messages that has not ended: its one producer, and what that has staged."""

    producer_id: int
    stage: Stage


class Ending(msgspec.Struct, array_like=True):
    """The end of the latest decided transaction of a name; also its row in the checkpoint."""

    at: int = 0
    number: int = -1
    decision: bytes = b""
    #: What is published, in this order; also what earlier transactions of the name have left.
    batches: list[StagedBatch] = []
    #: How many of them are published, or cannot be any more; 0 when there are none to publish.
    published: int = 0

    @property
    def waiting(self) -> Iterator[StagedBatch]:
        """The batches that are still to be published."""
        return map(self.batches.__getitem__, range(self.published, len(self.batches)))
