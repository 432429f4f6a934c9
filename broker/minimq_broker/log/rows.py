"""The rows of the ConsumeQueue; limits and results of reads."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import google_crc32c
import lmdb
import msgspec

from minimq_broker.log.entry import EntryHeader
from minimq_broker.state.state import QueueKey
from minimq_common.batch.header import Header
from minimq_common.errors import CorruptEntry

#: Position, size of the entry, message count, store time, first and last born time, number of tag hashes.
_ROW = struct.Struct("<QIIqqqH")
#: Topic id, queue id, last offset.
ROW_KEY = struct.Struct(">QIQ")
_COUNT = struct.Struct("<I")
_COUNT_AT = 12
_SIZE = struct.Struct("<I")
_SIZE_AT = 8
_NUMBER = struct.Struct("<H")
_NUMBER_AT = _ROW.size - _NUMBER.size
_TOO_MANY_TAGS = 0xFFFF
#: After the hashes: the CRC-32C of key and row.
_SEAL = struct.Struct("<I")


class Row(msgspec.Struct, frozen=True, gc=False):
    """The row of one batch in the ConsumeQueue; the same on every replica."""

    last_offset: int
    position: int
    size: int
    count: int
    stored_ms: int
    born_first_ms: int
    born_last_ms: int
    #: As in the batch header: None if there are too many tags to list.
    tag_hashes: tuple[int, ...] | None

    @property
    def base_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.count + 1

    def pack(self, queue: QueueKey) -> tuple[bytes, bytes]:
        """Return the key and the stored bytes of the row, with its checksum."""
        hashes = self.tag_hashes
        number = _TOO_MANY_TAGS if hashes is None else len(hashes)
        key = ROW_KEY.pack(*queue, self.last_offset)
        value = _ROW.pack(
            self.position, self.size, self.count, self.stored_ms, self.born_first_ms, self.born_last_ms, number
        )
        if hashes:
            value += struct.pack(f"<{number}I", *hashes)
        return key, value + _SEAL.pack(google_crc32c.value(key + value))


def row_of(header: EntryHeader, about: Header, position: int, size: int) -> Row:
    return Row(
        header.base_offset + about.count - 1,
        position,
        size,
        about.count,
        header.stored_ms,
        about.born_first_ms,
        about.born_last_ms,
        about.tag_hashes,
    )


def _accept_all(_batch: memoryview) -> bool:
    return True


class BorrowedViews(ExitStack):
    """Keeps views of segment files valid until it is closed: holds a transaction and a reference of each segment."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[object, lmdb.Transaction] = {}

    def reading(
        self, segment: object, begin: Callable[[], AbstractContextManager[lmdb.Transaction]]
    ) -> lmdb.Transaction:
        """Return the read transaction of a segment; the first call begins it."""
        transaction = self._open.get(segment)
        if transaction is None:
            transaction = self._open[segment] = self.enter_context(begin())
        return transaction


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of a read, which stops after the batch that reaches one of them."""

    max_messages: int
    #: Of whole entries. A single batch may be larger.
    max_bytes: int
    #: Only batches that may contain one of these tags; all if empty.
    tag_hashes: frozenset[int] = frozenset()
    #: Number of batches to examine.
    max_rows: int = 1 << 62
    #: Filter on the bytes of a batch.
    may_hold: Callable[[memoryview], bool] = _accept_all
    #: If given, batches are not copied but returned as views of the file, valid until this is closed.
    borrowed: BorrowedViews | None = None

    def less(self, offset: int, part: ReadResult) -> ReadLimits | None:
        """Return the limits that remain after reading `part` from `offset` on; None if one of them is reached."""
        messages = self.max_messages - sum(row.last_offset + 1 - max(offset, row.base_offset) for row, _ in part.found)
        size = self.max_bytes - sum(row.size for row, _ in part.found)
        rows = self.max_rows - part.rows
        return (
            ReadLimits(messages, size, self.tag_hashes, rows, self.may_hold, self.borrowed)
            if min(messages, size, rows) > 0
            else None
        )


#: Shared by nearly all reads, which have no batch that was held.
NONE_HELD: Mapping[int, int] = MappingProxyType({})


class ReadResult(NamedTuple):
    found: list[tuple[Row, bytes]]
    #: Offset after everything that was examined.
    next_offset: int
    #: Number of examined batches.
    rows: int
    #: The read ended early at damage.
    is_cut: bool = False
    #: First offset of the first examined batch; -1 if there was none.
    begins_at: int = -1
    #: Until when batches were held, in ms since 1970, by their log positions.
    held_until_ms: Mapping[int, int] = NONE_HELD


def check_row(key: bytes | memoryview, value: bytes | memoryview) -> None:
    """Raise `CorruptEntry` if a stored row does not match its checksum."""
    stored = bytes(value)
    seal = _SEAL.pack(google_crc32c.value(bytes(key) + stored[: -_SEAL.size]))
    if stored[-_SEAL.size :] != seal or len(stored) < _ROW.size + _SEAL.size:
        raise CorruptEntry("an index row does not match its CRC-32C")


def unpack_row(last_offset: int, value: bytes | memoryview) -> Row:
    """Return the row that `Row.pack` encoded; its key holds the last offset."""
    position, size, count, stored_ms, born_first_ms, born_last_ms, number = _ROW.unpack_from(value)
    hashes = None if number == _TOO_MANY_TAGS else struct.unpack_from(f"<{number}I", value, _ROW.size)
    return Row(last_offset, position, size, count, stored_ms, born_first_ms, born_last_ms, hashes)


def may_hold(value: bytes | memoryview, wanted: frozenset[int]) -> bool:
    """Return whether the batch of a stored row may contain one of the tags."""
    [number] = _NUMBER.unpack_from(value, _NUMBER_AT)
    return number == _TOO_MANY_TAGS or not wanted.isdisjoint(struct.unpack_from(f"<{number}I", value, _ROW.size))


def last_offset_in(key: bytes) -> int:
    return int(ROW_KEY.unpack(key)[2])


def count_in(value: bytes | memoryview) -> int:
    return int(_COUNT.unpack_from(value, _COUNT_AT)[0])


def size_in(value: bytes | memoryview) -> int:
    return int(_SIZE.unpack_from(value, _SIZE_AT)[0])


def position_in(value: bytes | memoryview) -> int:
    return int(_ROW.unpack_from(value)[0])
