"""Searches for messages in the bytes of batches. Pure."""

from __future__ import annotations

import struct
import sys
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate

import msgspec

from minimq_common.batch.compression import beginning
from minimq_common.batch.header import (
    CODEC_ZSTD,
    CRC_BYTES,
    DIRECTORY,
    HEADER,
    SEPARATOR,
    SPARSE_VERSION,
    Section,
    flags_of,
    read_header,
    verified_header,
)
from minimq_common.batch.record_origins import HAS_ORIGINS, directory_place
from minimq_common.errors import CorruptBatch, InvalidArgument

#: Returns whether a batch may hold the message.
Search = Callable[[memoryview], bool]

#: Matches per batch that are checked against the bounds of its keys. A batch with more *may* hold the message.
_MAX_MATCHES = 256
_SEPARATOR = SEPARATOR.encode()
#: Producer id and sequence number, as in the header and in the origins of a compacted batch.
_NUMBER = struct.Struct("<QQ")
_NUMBER_AT = struct.calcsize("<BBHIIqq")
_NUMBER_END = _NUMBER_AT + _NUMBER.size
#: Bytes of a batch that are decompressed at first: about one block, which mostly has everything except the bodies.
_FIRST_BYTES = 128 << 10


class _Sections(msgspec.Struct, frozen=True, gc=False):
    #: Uncompressed, possibly only up to the wanted section.
    content: bytes | memoryview
    #: Start of each section, and the end of the last one.
    bounds: tuple[int, ...]

    def bytes_of(self, which: Section) -> bytes:
        return bytes(self.content[self.bounds[which] : self.bounds[which + 1]])


def key_search(key: str) -> Search:
    wanted = key.encode()

    def may_hold(batch: memoryview) -> bool:
        sections = _opened(batch, Section.KEYS)
        if sections is None:
            return True
        keys = sections.bytes_of(Section.KEYS)
        # Keys often start alike and end differently. `rfind` compares the first and the last byte before the
        # others, so it takes half the time of `in`.
        if keys.rfind(wanted) < 0:
            return False
        starts = memoryview(sections.bytes_of(Section.KEY_OFFSETS))
        if len(starts) % 4 or sys.byteorder == "big":
            return True
        return _is_a_key(keys, starts.cast("i"), wanted)

    return may_hold


def _is_a_key(keys: bytes, starts: memoryview[int], wanted: bytes) -> bool:
    at = keys.find(wanted)
    for _ in range(_MAX_MATCHES):
        end = at + len(wanted)
        if _is_bound(keys, starts, at, at - 1) and _is_bound(keys, starts, end, end):
            return True
        at = keys.find(wanted, at + 1)
        if at < 0:
            return False
    return True


def _is_bound(keys: bytes, starts: memoryview[int], at: int, separator_at: int) -> bool:
    if at in (0, len(keys)) or keys[separator_at : separator_at + 1] == _SEPARATOR:
        return True
    index = bisect_left(starts, at)
    return index < len(starts) and starts[index] == at


def value_search(value: str) -> Search:
    wanted = value.encode()

    def may_hold(batch: memoryview) -> bool:
        sections = _opened(batch, Section.VALUES)
        return sections is None or wanted in sections.bytes_of(Section.VALUES)

    return may_hold


def number_search(producer_id: int, sequence: int) -> Search:
    """Return a search for the batch with this number, also within a compacted batch."""
    wanted = _NUMBER.pack(producer_id, sequence)

    def may_hold(batch: memoryview) -> bool:
        if batch[_NUMBER_AT:_NUMBER_END] == wanted:
            return True
        if batch[0] != SPARSE_VERSION:
            return False
        origins = _origins(batch)
        return origins is None or wanted in origins

    return may_hold


def verified(search: Search) -> Search:
    """Return the same search, which also finds every batch that does not match its checksum."""

    def may_hold(batch: memoryview) -> bool:
        try:
            verified_header(bytes(batch))
        except (CorruptBatch, InvalidArgument):
            return True
        return search(batch)

    return may_hold


def _opened(batch: memoryview, last: Section) -> _Sections | None:
    try:
        header = read_header(batch)
        start, content = header.size, batch[:-CRC_BYTES]
        frame = batch[start:-CRC_BYTES]
        if header.codec == CODEC_ZSTD:
            content, start = memoryview(beginning(frame, _FIRST_BYTES)), 0
        if header.version == SPARSE_VERSION:
            start = directory_place(content, start, header, flags_of(batch))
        if header.codec == CODEC_ZSTD and len(content) < start + DIRECTORY.size:
            content = memoryview(beginning(frame, start + DIRECTORY.size))
        bounds = tuple(accumulate(DIRECTORY.unpack_from(content, start), initial=start + DIRECTORY.size))
        if header.codec == CODEC_ZSTD and len(content) < bounds[last + 1]:
            content = memoryview(beginning(frame, bounds[last + 1]))
    except (CorruptBatch, InvalidArgument, struct.error):
        return None
    return _Sections(content, bounds) if bounds[last + 1] <= len(content) else None


def _origins(batch: memoryview) -> bytes | None:
    try:
        header, flags = read_header(batch), flags_of(batch)
        if not flags & HAS_ORIGINS:
            return b""
        content = batch[header.size : -CRC_BYTES]
        if header.codec != CODEC_ZSTD:
            return bytes(content[: directory_place(content, 0, header, flags)])
        return beginning(content, directory_place(beginning(content, _FIRST_BYTES), 0, header, flags))
    except (CorruptBatch, InvalidArgument, struct.error):
        return None


assert HEADER.size == _NUMBER_END + 4
