"""The rows of the ConsumeQueue; limits and results of reads."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import google_crc32c
import lmdb
import msgspec

from minimq_broker.log.entry import EntryHeader
from minimq_broker.state.state import QueueKey
from minimq_common.batch.header import Header
from minimq_common.errors import CorruptEntry

#: Position, size of the entry, message count, store time, first and last born time, number of tag hashes.
ROW = struct.Struct("<QIIqqqH")
#: Topic id, queue id, last offset.
ROW_KEY = struct.Struct(">QIQ")
_COUNT = struct.Struct("<I")
_COUNT_AT = 12
_SIZE = struct.Struct("<I")
_SIZE_AT = 8
_NUMBER = struct.Struct("<H")
_NUMBER_AT = ROW.size - _NUMBER.size
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
        value = ROW.pack(
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
    may_hold: Callable[[memoryview], bool] | None = None
    #: If given, batches are not copied but returned as views of the file, valid until this is closed.
    borrowed: BorrowedViews | None = None


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch in a queue; `held_until_ms` (since 1970) is set if it was held until a time."""

    base_offset: int
    stored_ms: int
    position: int
    count: int
    #: With `ReadLimits.borrowed` a view of the file.
    data: bytes
    held_until_ms: int = 0


class Reading:
    """A read of one queue over segments: what it has found, and how much more it may find."""

    __slots__ = ("at", "bytes_left", "found", "is_over", "limits", "messages_left", "next_offset", "rows", "start")

    def __init__(self, limits: ReadLimits, offset: int) -> None:
        self.limits, self.start = limits, offset
        self.found: list[StoredBatch] = []
        #: Offset after everything that was examined.
        self.next_offset = offset
        #: Last offset of the row that is examined now.
        self.at = offset
        #: Number of examined batches.
        self.rows = 0
        self.messages_left, self.bytes_left = limits.max_messages, limits.max_bytes
        #: One of the limits is reached.
        self.is_over = False


def check_row(key: bytes | memoryview, value: bytes | memoryview) -> None:
    """Raise `CorruptEntry` if a stored row does not match its checksum."""
    stored = bytes(value)
    seal = _SEAL.pack(google_crc32c.value(bytes(key) + stored[: -_SEAL.size]))
    if stored[-_SEAL.size :] != seal or len(stored) < ROW.size + _SEAL.size:
        raise CorruptEntry("an index row does not match its CRC-32C")


def unpack_row(last_offset: int, value: bytes | memoryview) -> Row:
    """Return the row that `Row.pack` encoded; its key holds the last offset."""
    position, size, count, stored_ms, born_first_ms, born_last_ms, number = ROW.unpack_from(value)
    hashes = None if number == _TOO_MANY_TAGS else struct.unpack_from(f"<{number}I", value, ROW.size)
    return Row(last_offset, position, size, count, stored_ms, born_first_ms, born_last_ms, hashes)


def may_hold(value: bytes | memoryview, wanted: frozenset[int]) -> bool:
    """Return whether the batch of a stored row may contain one of the tags."""
    [number] = _NUMBER.unpack_from(value, _NUMBER_AT)
    return number == _TOO_MANY_TAGS or not wanted.isdisjoint(struct.unpack_from(f"<{number}I", value, ROW.size))


def last_offset_in(key: bytes) -> int:
    return int(ROW_KEY.unpack(key)[2])


def count_in(value: bytes | memoryview) -> int:
    return int(_COUNT.unpack_from(value, _COUNT_AT)[0])


def size_in(value: bytes | memoryview) -> int:
    return int(_SIZE.unpack_from(value, _SIZE_AT)[0])


def position_in(value: bytes | memoryview) -> int:
    return int(ROW.unpack_from(value)[0])
