"""The columns of a sparse batch that list the remaining records and the batches they came from.

A broker removes records from batches and joins neighboring batches. The remaining records keep their offsets, ids
and store times. These columns precede the directory::

    number of origins       32 bits; only with the flag `HAS_ORIGINS`
    record numbers          32 bits for each remaining record, ascending: its offset less that of the batch; with the
                            flag `LISTS_REMOVED`, the numbers of the removed records instead
    origins                 `ORIGIN` for each original batch that has a remaining record

Without origins, all records come from one batch, and its producer id and sequence number are in the header. So removing
records never makes a batch larger.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import lt

import msgspec

from minimq_common.batch.header import Header
from minimq_common.errors import CorruptBatch
from minimq_common.timestamps import MAX_TIME_MS

_COUNT = struct.Struct("<I")
#: Flags; they share 32 bits with the number of remaining records.
HAS_ORIGINS = 1 << 30
LISTS_REMOVED = 1 << 31
#: The fields of `RecordOrigin`, with 4 spare bytes after the first.
ORIGIN = struct.Struct("<I4xQQqq")


class RecordOrigin(msgspec.Struct, frozen=True, gc=False):
    """A batch before its first records were removed. Times are in ms since 1970."""

    #: Number of its first record in the compacted batch.
    first: int
    producer_id: int
    sequence: int
    stored_ms: int
    thinned_ms: int


class RecordOrigins:
    """The ascending numbers of the remaining records of a sparse batch, and their origins."""

    __slots__ = ("_firsts", "numbers", "origins")

    def __init__(self, numbers: Sequence[int], origins: Sequence[RecordOrigin]) -> None:
        self.numbers = numbers
        self.origins = origins
        self._firsts = [origin.first for origin in origins]

    def place(self, number: int) -> int:
        """Return the index in the columns of a record, or of the next remaining one."""
        return bisect_left(self.numbers, number)

    def origin(self, number: int) -> RecordOrigin:
        return self.origins[bisect_right(self._firsts, number) - 1]

    def cut(self, first: int, end: int) -> RecordOrigins:
        """Return the slice from index `first` to `end`."""
        numbers = self.numbers[first:end]
        if not self.origins or not numbers:
            return RecordOrigins(numbers, ())
        found = [bisect_right(self._firsts, number) for number in (numbers[0], numbers[-1])]
        return RecordOrigins(numbers, self.origins[found[0] - 1 : found[1]])

    def run(self, number: int) -> tuple[RecordOrigin, int]:
        """Return the origin of a remaining record, and the record number at which the next origin begins."""
        index = bisect_right(self._firsts, number)
        return self.origins[index - 1], self._firsts[index] if index < len(self._firsts) else 1 << 32

    def pack(self, count: int) -> tuple[int, bytes]:
        """Return the flags, and the encoded columns for a batch of `count` offsets."""
        flags, listed = 0, array("I", self.numbers)
        if 2 * len(listed) > count:
            gone = set(range(count)).difference(listed)
            flags, listed = LISTS_REMOVED, array("I", sorted(gone))
        if sys.byteorder == "big":
            listed.byteswap()
        if not self.origins:
            return flags, listed.tobytes()
        packed = [
            ORIGIN.pack(each.first, each.producer_id, each.sequence, each.stored_ms, each.thinned_ms)
            for each in self.origins
        ]
        return flags | HAS_ORIGINS, b"".join((_COUNT.pack(len(packed)), listed.tobytes(), *packed))


def directory_place(content: bytes | memoryview, start: int, header: Header, flags: int) -> int:
    """Return the start of the directory of a sparse batch, without verifying the columns before it."""
    listed = header.count - header.remaining if flags & LISTS_REMOVED else header.remaining
    if not flags & HAS_ORIGINS:
        return start + 4 * listed
    [many] = _COUNT.unpack_from(content, start)
    return start + _COUNT.size + 4 * listed + ORIGIN.size * int(many)


def read_origins(content: bytes, start: int, end: int, header: Header, flags: int) -> tuple[RecordOrigins, int]:
    """Return the origins of a sparse batch, and the start of its directory. Raises `CorruptBatch`."""
    count, remaining = header.count, header.remaining
    many = 0
    if flags & HAS_ORIGINS:
        if end < start + _COUNT.size:
            raise CorruptBatch("a sparse batch ends before its origins")
        [many] = _COUNT.unpack_from(content, start)
        start += _COUNT.size
        if not 0 < many <= remaining:
            raise CorruptBatch(f"a sparse batch of {remaining} records says that it has {many} origins")
    listed = count - remaining if flags & LISTS_REMOVED else remaining
    origins_at = start + 4 * listed
    directory_at = origins_at + ORIGIN.size * many
    if end < directory_at:
        raise CorruptBatch(f"a sparse batch ends before the numbers of {listed} records and {many} origins")
    numbers = _read_numbers(memoryview(content)[start:origins_at], count, flags)
    origins = [RecordOrigin(*values) for values in ORIGIN.iter_unpack(memoryview(content)[origins_at:directory_at])]
    _check_ascending([origin.first for origin in origins], "origins", count)
    if origins and origins[0].first > numbers[0]:
        raise CorruptBatch("the first record of a sparse batch has no origin")
    if any(not 0 <= each <= MAX_TIME_MS for origin in origins for each in (origin.stored_ms, origin.thinned_ms)):
        raise CorruptBatch(f"an origin in a sparse batch has a time that is not within 0 to {MAX_TIME_MS}")
    return RecordOrigins(numbers, origins), directory_at


def _read_numbers(data: memoryview, count: int, flags: int) -> list[int]:
    stored = array("I")
    stored.frombytes(data)
    if sys.byteorder == "big":
        stored.byteswap()
    numbers = stored.tolist()
    _check_ascending(numbers, "records", count)
    if not flags & LISTS_REMOVED:
        return numbers
    gone = set(numbers)
    return [number for number in range(count) if number not in gone]


def _check_ascending(numbers: list[int], what: str, count: int) -> None:
    if numbers and (numbers[-1] >= count or not all(map(lt, numbers, numbers[1:]))):
        raise CorruptBatch(f"the {what} of a sparse batch do not ascend to below {count}")
