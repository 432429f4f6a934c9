"""The columns of a compacted batch that say which records remain, and what batches they came from.

Compaction removes records from batches and joins neighboring batches. The offsets of the others stay what they are, and
so do their ids and store times: a compacted batch has these columns in front of the directory of its sections::

    number of origins       32 bits
    record numbers          32 bits for each record that remains, ascending: its offset less that of the batch
    origins                 `ORIGIN` for each batch that it was made of and that has a record left
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

import msgspec

from minimq_common.errors import CorruptBatch
from minimq_common.moments import MAX_TIME_MS

_COUNT = struct.Struct("<I")
#: Number of its first record in the compacted batch, four spare bytes, producer id, sequence number, when it was
#: stored, and when it was first compacted.
ORIGIN = struct.Struct("<I4xQQqq")


class RecordOrigin(msgspec.Struct, frozen=True, gc=False):
    """A batch as it was before it was compacted.

    Attributes:
        first: number that its first record has in the compacted batch.
        producer_id: as its header had it.
        sequence: as its header had it.
        stored_ms: when its broker stored it, in ms since 1970.
        compacted_ms: when it was compacted for the first time, in ms since 1970.
    """

    first: int
    producer_id: int
    sequence: int
    stored_ms: int
    compacted_ms: int


class RecordCounts(Protocol):
    """The part of the header of a batch that its origins have to fit."""

    @property
    def count(self) -> int:
        """Number of offsets."""

    @property
    def remaining(self) -> int:
        """Number of records."""


class RecordOrigins:
    """The numbers of the records that remain in a compacted batch, and where they came from.

    Attributes:
        numbers: of the records that remain, ascending.
        origins: ascending by their first records.
    """

    __slots__ = ("_firsts", "numbers", "origins")

    def __init__(self, numbers: Sequence[int], origins: Sequence[RecordOrigin]) -> None:
        self.numbers = numbers
        self.origins = origins
        self._firsts = [origin.first for origin in origins]

    def place(self, number: int) -> int:
        """Return the place of a record in the columns, or of the next one that remains."""
        return bisect_left(self.numbers, number)

    def origin(self, number: int) -> RecordOrigin:
        """Return the origin of a record that remains."""
        return self.origins[bisect_right(self._firsts, number) - 1]

    def run(self, number: int) -> tuple[RecordOrigin, int]:
        """Return the origin of a record that remains, and the number with which the next origin begins."""
        index = bisect_right(self._firsts, number)
        return self.origins[index - 1], self._firsts[index] if index < len(self._firsts) else 1 << 32

    def pack(self) -> bytes:
        """Return the columns as they stand in a batch."""
        numbers = array("I", self.numbers)
        if sys.byteorder == "big":
            numbers.byteswap()
        packed = [
            ORIGIN.pack(each.first, each.producer_id, each.sequence, each.stored_ms, each.compacted_ms)
            for each in self.origins
        ]
        return b"".join((_COUNT.pack(len(packed)), numbers.tobytes(), *packed))


def read_origins(content: bytes, start: int, end: int, header: RecordCounts) -> tuple[RecordOrigins, int]:
    """Return the origins of the records of a compacted batch, and where its directory begins.

    Args:
        content: what has them.
        start: where they begin in it.
        end: where it ends.
        header: of the batch.

    Raises:
        CorruptBatch: they contradict each other or the counts.
    """
    count, remaining = header.count, header.remaining
    numbers_at = start + _COUNT.size
    if end < numbers_at:
        raise CorruptBatch("a compacted batch ends before its origins")
    [listed] = _COUNT.unpack_from(content, start)
    origins_at = numbers_at + 4 * remaining
    directory_at = origins_at + ORIGIN.size * listed
    if listed > remaining or end < directory_at:
        raise CorruptBatch(f"a compacted batch of {remaining} records says that it has {listed} origins")
    numbers = array("I")
    numbers.frombytes(memoryview(content)[numbers_at:origins_at])
    if sys.byteorder == "big":
        numbers.byteswap()
    _check_ascending(numbers.tolist(), "records", count)
    origins = [RecordOrigin(*values) for values in ORIGIN.iter_unpack(memoryview(content)[origins_at:directory_at])]
    firsts = [origin.first for origin in origins]
    _check_ascending(firsts, "origins", count)
    if remaining and (not firsts or firsts[0] > numbers[0]):
        raise CorruptBatch("the first record of a compacted batch has no origin")
    for origin in origins:
        if not (0 <= origin.stored_ms <= MAX_TIME_MS and 0 <= origin.compacted_ms <= MAX_TIME_MS):
            raise CorruptBatch(f"an origin in a compacted batch has a time that is not within 0 to {MAX_TIME_MS}")
    return RecordOrigins(numbers, origins), directory_at


def _check_ascending(numbers: list[int], what: str, count: int) -> None:
    """Raise `CorruptBatch` unless each number is larger than the one before, and all are below the count."""
    # Sorting what is sorted is the fastest way to look at all, and a number that stands there twice is one in a set.
    if numbers and (numbers[-1] >= count or numbers != sorted(numbers) or len(set(numbers)) != len(numbers)):
        raise CorruptBatch(f"the {what} of a compacted batch do not ascend to below {count}")
