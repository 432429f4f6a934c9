"""Builds a compacted batch from the remaining records of adjacent batches of a queue."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import compress, pairwise

import msgspec

from minimq_common.batch.builder import narrow, offsets, tag_section, with_checksum
from minimq_common.batch.compression import Compression
from minimq_common.batch.header import (
    CODEC_NONE,
    CODEC_ZSTD,
    DIRECTORY,
    HEADER,
    MAX_RECORDS,
    SPARSE_VERSION,
    TOO_MANY_TAGS,
    Section,
    remaining_bytes,
)
from minimq_common.batch.record_origins import RecordOrigin, RecordOrigins
from minimq_common.batch.records import RecordBatch

#: Limits on a batch that is joined from several: the defaults of producers. The bytes are approximate.
JOINED_RECORDS = 8192
JOINED_BYTES = 1 << 20
#: Born times within a batch differ by less.
_BORN_SPAN_MS = 1 << 32


class BatchPart(msgspec.Struct, frozen=True):
    """An opened batch of a queue, and which of its records remain."""

    base_offset: int
    stored_ms: int
    #: When it was first compacted, possibly now, in ms since 1970. Records with an origin keep the time of that.
    thinned_ms: int
    records: RecordBatch
    remains: Sequence[bool]

    @property
    def end(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.records.header.count

    @property
    def count(self) -> int:
        return sum(self.remains)

    @property
    def left_bytes(self) -> int:
        """Estimated bytes of the remaining records, as if all records had the same size."""
        return self.records.size * self.count // max(self.records.remaining, 1)

    def joins(self, parts: Sequence[BatchPart], size: int, count: int) -> bool:
        """Return whether it can be joined to `parts`, which would then have this size and count in total."""
        first = parts[0]
        header = self.records.header
        born = [each.records.header.born_first_ms for each in (*parts, self)]
        return (
            parts[-1].end == self.base_offset
            and size <= JOINED_BYTES
            and count <= JOINED_RECORDS
            and self.end - first.base_offset <= MAX_RECORDS
            and header.born_last_ms - min(born) < _BORN_SPAN_MS
            and max(each.records.header.born_last_ms for each in parts) - min(born) < _BORN_SPAN_MS
        )

    def origins(self, first_offset: int) -> list[RecordOrigin]:
        """Return the origins of its remaining records, for a batch that begins at `first_offset`."""
        header, shift = self.records.header, self.base_offset - first_offset
        if self.records.origins is None or not self.records.origins.origins:
            if not any(self.remains):
                return []
            return [RecordOrigin(shift, header.producer_id, header.sequence, self.stored_ms, self.thinned_ms)]
        found: dict[int, RecordOrigin] = {}
        for number in compress(self.records.numbers(), self.remains):
            origin = self.records.origins.origin(number)
            if origin.first not in found:
                found[origin.first] = msgspec.structs.replace(origin, first=origin.first + shift)
        return list(found.values())


def compacted(parts: Sequence[BatchPart], level: int = 1, *, is_numbered: bool = True) -> bytes:
    """Return one batch with the remaining records of one or more adjacent batches; it covers all their offsets.

    That of a single batch keeps its number, if `is_numbered`; else its records have origins.
    """
    first_offset, columns = parts[0].base_offset, _Columns()
    numbers: list[int] = []
    origins: list[RecordOrigin] = []
    for part in parts:
        shift = part.base_offset - first_offset
        numbers += [number + shift for number in compress(part.records.numbers(), part.remains)]
        origins += part.origins(first_offset)
        columns.add(part)
    sections, hashes, born_ms = columns.sections()
    if not born_ms:
        born_ms = (parts[0].records.header.born_first_ms,) * 2
    header, count = parts[0].records.header, parts[-1].end - first_offset
    is_alone = is_numbered and len(parts) == 1 and not (parts[0].records.origins and parts[0].records.origins.origins)
    flags, prefix = RecordOrigins(numbers, [] if is_alone else origins).pack(count)
    batch_id = (header.producer_id, header.sequence, header.sequence - header.settled_before) if is_alone else (0, 0, 0)
    content = [prefix, DIRECTORY.pack(*map(len, sections)), *sections]
    codec = CODEC_NONE
    if any(part.records.header.codec == CODEC_ZSTD for part in parts):
        frame = Compression(above_bytes=1, level=level).compress(content)
        if frame is not None:
            codec, content = CODEC_ZSTD, [frame]
    listed = 0 if hashes is None else len(hashes)
    head = b"".join(
        (
            HEADER.pack(
                SPARSE_VERSION,
                codec,
                TOO_MANY_TAGS if hashes is None else listed,
                count,
                columns.largest_body,
                *born_ms,
                *batch_id,
            ),
            remaining_bytes(len(numbers), flags),
            struct.pack(f"<{listed}I", *(hashes or ())),
        )
    )
    return with_checksum((head, *content))


class _Columns:
    """Gathers the columns of the remaining records from several batches."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        self._keys: list[bytes] = []
        self._tags: list[str | None] = []
        self._born: list[int] = []
        #: Number of properties of each record; the names and values of all.
        self._counts: list[int] = []
        self._names: list[bytes] = []
        self._values: list[bytes] = []

    @property
    def largest_body(self) -> int:
        return max(map(len, self._bodies), default=0)

    def add(self, part: BatchPart) -> None:
        records, remains = part.records, part.remains
        self._bodies += compress(records.bodies(), remains)
        self._tags += compress(records.tags(), remains)
        self._born += compress(records.all_born_ms(), remains)
        self._keys += compress(records.raw_keys(), remains)
        if not records.has(Section.PROPERTY_OFFSETS):
            self._counts += [0] * part.count
            return
        ends, names, values = records.raw_properties()
        for (start, end), is_there in zip(pairwise(ends), remains, strict=True):
            if is_there:
                self._counts.append(end - start)
                self._names += names[start:end]
                self._values += values[start:end]

    def sections(self) -> tuple[list[bytes], list[int] | None, tuple[int, ...]]:
        """Return the sections, the tag hashes, and first and last born time (empty without records)."""
        sections = [b""] * len(Section)
        sections[Section.BODY_OFFSETS], sections[Section.BODIES] = _column(self._bodies)
        if any(self._keys):
            sections[Section.KEY_OFFSETS], sections[Section.KEYS] = _column(self._keys)
        if any(self._counts):
            sections[Section.PROPERTY_OFFSETS] = offsets(self._counts)
            sections[Section.NAME_OFFSETS], sections[Section.NAMES] = _column(self._names)
            sections[Section.VALUE_OFFSETS], sections[Section.VALUES] = _column(self._values)
        hashes = self._encode_tags(sections)
        if not self._born:
            return sections, hashes, ()
        first, last = min(self._born), max(self._born)
        sections[Section.BORN] = narrow([born - first for born in self._born], last - first)
        return sections, hashes, (first, last)

    def _encode_tags(self, sections: list[bytes]) -> list[int] | None:
        dictionary = sorted({tag or "" for tag in self._tags})
        if dictionary in ([], [""]):
            return [0] if dictionary else []
        sections[Section.TAG_DICTIONARY], hashes = tag_section(dictionary)
        codes = {tag: code for code, tag in enumerate(dictionary)}
        sections[Section.TAG_CODES] = narrow([codes[tag or ""] for tag in self._tags], len(dictionary) - 1)
        return hashes


def _column(values: list[bytes]) -> tuple[bytes, bytes]:
    return offsets(list(map(len, values))), b"".join(values)
