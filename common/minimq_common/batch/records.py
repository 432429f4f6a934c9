"""Decoding a batch; `header.py` has the format and the header."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

from minimq_common.batch.compression import MAX_CONTENT_BYTES, decompress
from minimq_common.batch.header import (
    CODEC_ZSTD,
    CRC_BYTES,
    DIRECTORY,
    MAX_METADATA,
    MAX_METADATA_BYTES,
    MAX_TAGS,
    SEPARATOR,
    SPARSE_VERSION,
    Section,
    flags_of,
    verified_header,
)
from minimq_common.batch.record_origins import RecordOrigins, read_origins
from minimq_common.errors import CorruptBatch

#: Text columns: (offsets, values).
_TEXTS = (
    (Section.KEY_OFFSETS, Section.KEYS),
    (Section.NAME_OFFSETS, Section.NAMES),
    (Section.VALUE_OFFSETS, Section.VALUES),
)
_PROPERTY_SECTIONS = (
    Section.PROPERTY_OFFSETS,
    Section.NAME_OFFSETS,
    Section.VALUE_OFFSETS,
    Section.NAMES,
    Section.VALUES,
)
_SECTIONS = len(Section)
_NO_BASES = (0,) * _SECTIONS
#: Plain integers for `RecordBatch.metadata`: faster than the enum.
_KEY_OFFSETS, _PROPERTY_OFFSETS, _NAME_OFFSETS, _VALUE_OFFSETS, _BORN = map(int, list(Section)[1:6])
_KEYS, _NAMES, _VALUES = map(int, list(Section)[8:11])
#: Bytes of memory for the number of one record of a sparse batch.
_NUMBER_BYTES = 40
_OFFSET = struct.Struct("<i")
_TWO_OFFSETS = struct.Struct("<2i")
#: Average size of values above which copying the section costs more than adding its start to each offset.
_LARGE_VALUE_BYTES = 512
#: Limit for the characters of the tags of all records together, as in an Arrow column without a dictionary.
_MAX_TAG_COLUMN = 2 * MAX_CONTENT_BYTES


class RecordBatch:
    """A batch opened for reading. Not thread-safe."""

    __slots__ = ("_are_texts_checked", "_bases", "_bounds", "_content", "_first", "header", "origins", "remaining")

    def __init__(self, data: bytes) -> None:
        header = verified_header(data)
        #: The batch itself, or the content of its frame. Both are `bytes`, so the first section is aligned.
        self._content, start, end = data, header.size, len(data) - CRC_BYTES
        if header.codec == CODEC_ZSTD:
            self._content = decompress(memoryview(data)[start:end])
            start, end = 0, len(self._content)
        #: The remaining records of a sparse batch; None if the batch is not sparse.
        self.origins: RecordOrigins | None = None
        if header.version == SPARSE_VERSION:
            self.origins, start = read_origins(self._content, start, end, header, flags_of(data))
        if end - start < DIRECTORY.size:
            raise CorruptBatch(f"a batch of {len(data)} bytes has no directory of its sections")
        lengths = DIRECTORY.unpack_from(self._content, start)
        self.header = header
        self.remaining = header.remaining
        self._are_texts_checked = False
        #: Number of the first record, and the first value of each column of offsets: 0 except in a copy by `metadata`.
        self._first = 0
        self._bases: Sequence[int] = _NO_BASES
        self._bounds = tuple(accumulate(lengths, initial=start + DIRECTORY.size))
        if self._bounds[-1] != end:
            raise CorruptBatch(f"the sections of a batch end at {self._bounds[-1]} where they should at {end}")
        self._check_shape(lengths)

    def __len__(self) -> int:
        """Return the number of offsets, including those of removed records."""
        return self.header.count

    def numbers(self, first: int = 0) -> Sequence[int]:
        """Return the numbers of the remaining records, starting at `first`."""
        if self.origins is None:
            return range(first, self.header.count)
        return self.origins.numbers[self.origins.place(first) :]

    @property
    def size(self) -> int:
        """Bytes in memory, decompressed."""
        return len(self._content)

    def section(self, which: Section) -> memoryview:
        """Return the bytes of a section, without a copy."""
        return memoryview(self._content)[self._bounds[which] : self._bounds[which + 1]]

    def has(self, which: Section) -> bool:
        return bool(self._bounds[which] != self._bounds[which + 1])

    def check_values(self) -> None:
        """Verify every value; afterwards no other method raises. Raises `CorruptBatch`."""
        self._ascending(Section.BODY_OFFSETS)
        self.tags()
        self.check_texts()

    def check_texts(self) -> None:
        """Verify all keys and properties, once. Raises `CorruptBatch`."""
        if self._are_texts_checked:
            return
        ends = self._ascending(Section.PROPERTY_OFFSETS)
        if ends[-1] - ends[0] > MAX_METADATA and max(end - start for start, end in pairwise(ends)) > MAX_METADATA + 1:
            raise CorruptBatch(f"a record of a batch has more than {MAX_METADATA + 1} properties")
        for offsets, values in _TEXTS:
            bounds = self._ascending(offsets)
            base = self._bases[offsets]
            self._check_text(values, [bound - base for bound in bounds] if base else bounds)
            # The total is cheap to check: no value is too long unless all together are.
            if (
                bounds[-1] - bounds[0] > MAX_METADATA_BYTES
                and max(end - start for start, end in pairwise(bounds)) > MAX_METADATA_BYTES
            ):
                raise CorruptBatch(f"a record of a batch has more than {MAX_METADATA_BYTES} bytes of {values.name}")
        self._are_texts_checked = True

    def bodies(self, first: int = 0) -> list[bytes]:
        """Return the bodies, starting at record number `first`. Raises `CorruptBatch`."""
        return self._slices(Section.BODY_OFFSETS, Section.BODIES, self.place(first))

    def tags(self, first: int = 0) -> list[str | None]:
        """Return the tags, starting at record number `first`. Raises `CorruptBatch`."""
        first = self.place(first)
        count = self.remaining - first
        if not self.has(Section.TAG_DICTIONARY):
            return [None] * count
        dictionary = self.tag_dictionary()
        codes = self._numbers(Section.TAG_CODES)
        if codes is None:
            return dictionary[:1] * count
        try:
            return list(map(dictionary.__getitem__, codes[first:]))
        except IndexError:
            raise CorruptBatch(f"a record of a batch has none of its {len(dictionary)} tags") from None

    def tag_dictionary(self) -> list[str | None]:
        """Return the distinct tags, indexed by tag code; None means "no tag". Raises `CorruptBatch`."""
        return [tag or None for tag in self._tag_texts()]

    def keys(self, index: int) -> tuple[str, ...]:
        """Return the keys of one record. Raises `CorruptBatch` if those of any record are malformed."""
        self.check_texts()
        if not self.has(Section.KEY_OFFSETS):
            return ()
        place = self.place(index)
        [text] = self._texts(Section.KEY_OFFSETS, Section.KEYS, place, place + 1)
        return tuple(text.split(SEPARATOR)) if text else ()

    def properties(self, index: int) -> dict[str, str]:
        """Return the properties of one record. Raises `CorruptBatch` if those of any record are malformed."""
        self.check_texts()
        if not self.has(Section.PROPERTY_OFFSETS):
            return {}
        at = self._bounds[Section.PROPERTY_OFFSETS] + 4 * self.place(index)
        base = self._bases[Section.PROPERTY_OFFSETS]
        start, end = [bound - base for bound in _TWO_OFFSETS.unpack_from(self._content, at)]
        names = self._texts(Section.NAME_OFFSETS, Section.NAMES, start, end)
        return dict(zip(names, self._texts(Section.VALUE_OFFSETS, Section.VALUES, start, end), strict=True))

    def born_ms(self, index: int) -> int:
        """Return when one record was passed to its producer, in ms since 1970."""
        deltas = self._numbers(Section.BORN)
        return self.header.born_first_ms + (deltas[self.place(index)] if deltas is not None else 0)

    def all_born_ms(self) -> list[int]:
        """Return when each remaining record was passed to its producer, in ms since 1970."""
        first, deltas = self.header.born_first_ms, self._numbers(Section.BORN)
        return [first] * self.remaining if deltas is None else [first + delta for delta in deltas]

    def body_ends(self) -> list[int]:
        """Return the boundaries of the bodies: one more than there are records. Raises `CorruptBatch`."""
        return self._ascending(Section.BODY_OFFSETS)

    def raw_keys(self) -> list[bytes]:
        """Return the keys of each remaining record, joined by `SEPARATOR`, as UTF-8. Raises `CorruptBatch`."""
        return self._slices(Section.KEY_OFFSETS, Section.KEYS, 0) or [b""] * self.remaining

    def raw_properties(self) -> tuple[list[int], list[bytes], list[bytes]]:
        """Return the boundaries of the records' properties, and all names and values. Raises `CorruptBatch`."""
        ends = self._ascending(Section.PROPERTY_OFFSETS)
        names = self._slices(Section.NAME_OFFSETS, Section.NAMES, 0)
        return ends, names, self._slices(Section.VALUE_OFFSETS, Section.VALUES, 0)

    def message_id(self, index: int) -> str:
        """Return the id of one record: 40 hexadecimal digits, unchanged when the batch is resent or becomes sparse."""
        if self.origins is None or not self.origins.origins:
            return message_id(self.header.producer_id, self.header.sequence, index)
        origin = self.origins.origin(index)
        return message_id(origin.producer_id, origin.sequence, index - origin.first)

    def stored_ms(self, index: int) -> int | None:
        """Return when one record was stored, in ms since 1970; None if together with its batch."""
        if self.origins is None or not self.origins.origins:
            return None
        return self.origins.origin(index).stored_ms

    def place(self, number: int) -> int:
        """Return the index in the columns of a record, or of the next remaining one."""
        return number - self._first if self.origins is None else self.origins.place(number)

    @property
    def metadata_size(self) -> int:
        """Bytes of keys, properties and born times of all records."""
        bounds = self._bounds
        size: int = (
            bounds[Section.TAG_CODES] - bounds[Section.KEY_OFFSETS] + bounds[Section.BODIES] - bounds[Section.KEYS]
        )
        return size if self.origins is None else size + _NUMBER_BYTES * self.remaining

    def metadata(self, first: int, end: int) -> RecordBatch:
        """Return a copy of a range of records, by place, with keys, properties, ids and times only."""
        content, bounds = self._content, self._bounds
        sections, bases = [b""] * _SECTIONS, list(_NO_BASES)
        spans = [(_KEY_OFFSETS, _KEYS, first, end)] if bounds[_KEY_OFFSETS] != bounds[_KEY_OFFSETS + 1] else []
        if (at := bounds[_PROPERTY_OFFSETS]) != (names_at := bounds[_PROPERTY_OFFSETS + 1]):
            column = sections[_PROPERTY_OFFSETS] = content[at + 4 * first : at + 4 * end + 4]
            base = bases[_PROPERTY_OFFSETS] = _OFFSET.unpack_from(column)[0]
            start, stop = base - self._bases[_PROPERTY_OFFSETS], _OFFSET.unpack(column[-4:])[0]
            stop -= self._bases[_PROPERTY_OFFSETS]
            if not 0 <= start <= stop < (bounds[_NAME_OFFSETS + 1] - names_at) // 4:
                return self
            spans += [(_NAME_OFFSETS, _NAMES, start, stop), (_VALUE_OFFSETS, _VALUES, start, stop)]
        for offsets, values, start, stop in spans:
            at = bounds[offsets]
            column = sections[offsets] = content[at + 4 * start : at + 4 * stop + 4]
            base = bases[offsets] = _OFFSET.unpack_from(column)[0]
            at = bounds[values] - self._bases[offsets]
            sections[values] = content[at + base : at + (last := _OFFSET.unpack(column[-4:])[0])]
            if not bounds[values] <= at + base <= at + last <= bounds[values + 1]:
                return self
        if width := (bounds[_BORN + 1] - (at := bounds[_BORN])) // self.remaining:
            sections[_BORN] = content[at + width * first : at + width * end]
        part = RecordBatch.__new__(RecordBatch)
        part.header, part.remaining = self.header, end - first
        part.origins = None if self.origins is None else self.origins.cut(first, end)
        part._are_texts_checked = self._are_texts_checked
        part._first, part._bases = self._first + first, bases
        part._content = b"".join(sections)
        part._bounds = tuple(accumulate(map(len, sections), initial=0))
        return part

    def _slices(self, offsets: Section, values: Section, first: int) -> list[bytes]:
        bounds = self._ascending(offsets, first)
        if bounds[-1] - bounds[0] > _LARGE_VALUE_BYTES * len(bounds):
            data, begin = self._content, self._bounds[values]
            return [data[begin + start : begin + end] for start, end in pairwise(bounds)]
        data = bytes(self.section(values))  # slicing bytes instead of a memoryview saves more than this copy costs
        return [data[start:end] for start, end in pairwise(bounds)]

    def _ascending(self, offsets: Section, first: int = 0) -> list[int]:
        section = self.section(offsets)
        if not section:
            return [0]
        ends = array("i")
        ends.frombytes(section[4 * first :])
        if sys.byteorder == "big":
            ends.byteswap()
        bounds = ends.tolist()
        # Overlapping offsets would make a reader copy the same bytes many times. Sorting a sorted list takes only
        # 4 ns per number.
        if bounds[0] < 0 or bounds != sorted(bounds):
            raise CorruptBatch(f"the {offsets.name} of a batch do not ascend")
        return bounds

    def _check_shape(self, lengths: Sequence[int]) -> None:
        count = self.remaining
        self._check_span(Section.BODY_OFFSETS, count, lengths[Section.BODIES])
        if lengths[Section.KEY_OFFSETS] or lengths[Section.KEYS]:
            self._check_span(Section.KEY_OFFSETS, count, lengths[Section.KEYS])
        if any(map(lengths.__getitem__, _PROPERTY_SECTIONS)):
            properties = max(lengths[Section.NAME_OFFSETS] // 4 - 1, 0)
            self._check_span(Section.PROPERTY_OFFSETS, count, properties)
            self._check_span(Section.NAME_OFFSETS, properties, lengths[Section.NAMES])
            self._check_span(Section.VALUE_OFFSETS, properties, lengths[Section.VALUES])
        for codes, widths in ((Section.BORN, (0, 1, 2, 4)), (Section.TAG_CODES, (0, 1, 2))):
            if lengths[codes] not in map(count.__mul__, widths):
                raise CorruptBatch(f"the {codes.name} of a batch are not one for each of {count} records")
        most = _MAX_TAG_COLUMN // max(count, 1)
        if lengths[Section.TAG_DICTIONARY] > most and max(map(len, self._tag_texts())) > most:
            raise CorruptBatch(f"a tag of a batch has more than {most} characters, for {count} records")

    def _tag_texts(self) -> list[str]:
        section = bytes(self.section(Section.TAG_DICTIONARY))
        if section.count(SEPARATOR.encode()) >= MAX_TAGS:
            raise CorruptBatch(f"a batch has more than {MAX_TAGS} distinct tags")
        try:
            return section.decode().split(SEPARATOR)
        except UnicodeDecodeError as error:
            raise CorruptBatch(f"a tag of a batch is not UTF-8: {error.reason}") from None

    def _check_span(self, offsets: Section, count: int, end: int) -> None:
        section = self.section(offsets)
        if len(section) != 4 * (count + 1):
            raise CorruptBatch(f"a batch of {count} records has {len(section)} bytes of {offsets.name}")
        if _OFFSET.unpack_from(section)[0] != 0 or _OFFSET.unpack_from(section, 4 * count)[0] != end:
            raise CorruptBatch(f"the {offsets.name} of a batch do not lead from 0 to {end}")

    def _check_text(self, values: Section, ends: list[int]) -> None:
        section = self.section(values)
        try:
            is_ascii = len(str(section, "utf-8")) == len(section)
        except UnicodeDecodeError as error:
            raise CorruptBatch(f"the {values.name} of a batch are not UTF-8: {error.reason}") from None
        # A value boundary inside of a character is followed by a UTF-8 continuation byte (10xxxxxx).
        if not is_ascii and any(section[end] & 0xC0 == 0x80 for end in ends if end < len(section)):
            raise CorruptBatch(f"the {values.name} of a batch are cut inside of a character")

    def _texts(self, offsets: Section, values: Section, first: int, last: int) -> list[str]:
        place, at = self._bounds[offsets] + 4 * first, self._bounds[values] - self._bases[offsets]
        if last == first + 1:  # fast path for the usual case
            begin, end = _TWO_OFFSETS.unpack_from(self._content, place)
            return [self._content[at + begin : at + end].decode()]
        ends = struct.unpack_from(f"<{last - first + 1}i", self._content, place)
        begin = ends[0]
        data = self._content[at + begin : at + ends[-1]]
        if data.isascii():
            text = data.decode()
            return [text[start - begin : end - begin] for start, end in pairwise(ends)]
        return [data[start - begin : end - begin].decode() for start, end in pairwise(ends)]

    def _numbers(self, which: Section) -> memoryview | array[int] | None:
        section = self.section(which)
        width = len(section) // max(self.remaining, 1)
        if width == 0:
            return None
        if width == 1:
            return section
        numbers = array("H" if width == 2 else "I")
        numbers.frombytes(section)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers


def message_id(producer_id: int, sequence: int, index: int) -> str:
    """Return the id of record number `index` of a batch: 40 hexadecimal digits."""
    return f"{producer_id:016x}{sequence:016x}{index:08x}"
