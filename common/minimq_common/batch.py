"""The batch format: many records as columns in one `bytes`, made once by a producer and opened only by a reader.

A batch is the unit of sending, storing, replicating and reading, so that a broker never touches a message. It is::

    header      fixed part (`HEADER`), then one 32-bit hash for each distinct tag
    directory   length of each of the sections that follow, as 32-bit integers
    sections    in the order of `Section`; a column that no record uses has length 0
    checksum    CRC-32C of everything before it

With `CODEC_ZSTD`, directory and sections are one zstd frame: header and checksum stay as they are, so that a broker,
which looks at nothing else, is not concerned.

All numbers are little-endian. Offsets are 32-bit and count + 1 long, which is Arrow's layout for binary columns:
a reader that wants Arrow arrays takes the buffers as they are.

A batch does not know its topic, its queue or its offsets: it can be sent again to another queue as it is.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise

import google_crc32c

from minimq_common.compression import decompress
from minimq_common.errors import CorruptBatch, InvalidArgument

VERSION = 2
CODEC_NONE = 0
CODEC_ZSTD = 1

#: version, codec, number of tag hashes, count, largest body, first and last born time, producer id, sequence number,
#: number of unsettled sequence numbers.
HEADER = struct.Struct("<BBHIIqqQQI")
HEADER_BYTES = HEADER.size
CRC_BYTES = 4
#: The CRC-32C of any bytes followed by their own CRC-32C: so a batch is verified whole, without a copy of a part.
_CRC_RESIDUE = 0x48674BC7
#: Written instead of the number of hashes when a batch has more distinct tags than are worth listing.
TOO_MANY_TAGS = 0xFFFF
MAX_TAG_HASHES = 64

#: Joins the keys of one record, and the tags of the dictionary.
SEPARATOR = "\0"


class Section(IntEnum):
    """The sections of a batch in their order. Those of 32-bit numbers come first, so that they are aligned."""

    BODY_OFFSETS = 0
    KEY_OFFSETS = 1
    #: Number of properties before each record, then the offsets of their names and values.
    PROPERTY_OFFSETS = 2
    NAME_OFFSETS = 3
    VALUE_OFFSETS = 4
    #: Milliseconds after the first born time, in 4, 2 or 1 bytes each; empty when all are 0.
    BORN = 5
    #: Index into the dictionary, in 2 or 1 bytes each; empty when all are 0.
    TAG_CODES = 6
    #: Distinct tags joined by `SEPARATOR`; the empty one stands for "no tag". Empty when no record has a tag.
    TAG_DICTIONARY = 7
    KEYS = 8
    NAMES = 9
    VALUES = 10
    BODIES = 11


DIRECTORY = struct.Struct(f"<{len(Section)}I")


@dataclass(frozen=True, slots=True)
class Header:
    """What can be known of a batch without opening it."""

    version: int
    codec: int
    count: int
    #: Size in bytes of the largest body, so that a broker can keep its limit.
    largest_body: int
    born_first_ms: int
    born_last_ms: int
    #: 0 for a producer that does not number its batches: those are stored as often as they are sent.
    producer_id: int
    sequence: int
    #: How many sequence numbers just before this one may still be sent again; all earlier ones never will be.
    unsettled: int
    #: Sorted hashes of the tags in the batch (0 for "no tag"); None when there are too many to list.
    tag_hashes: tuple[int, ...] | None

    @property
    def size(self) -> int:
        """Length of the header in bytes."""
        return HEADER_BYTES + 4 * len(self.tag_hashes or ())

    @property
    def settled_before(self) -> int:
        """The producer will never send a batch with a smaller sequence number again."""
        return max(self.sequence - self.unsettled, 0)


def tag_hash(tag: str | None) -> int:
    """Return the 32-bit hash by which brokers tell tags apart; the same in every process and release."""
    return int(google_crc32c.value(tag.encode())) if tag else 0


def read_header(data: bytes | memoryview) -> Header:
    """Return the header of a batch. Raises `CorruptBatch` when it cannot be one, `InvalidArgument` when it is newer."""
    if len(data) < HEADER_BYTES + CRC_BYTES:
        raise CorruptBatch(f"a batch of {len(data)} bytes is shorter than its header")
    version, codec, hashes, count, largest, first, last, producer, sequence, unsettled = HEADER.unpack_from(data)
    if version != VERSION:
        raise InvalidArgument(f"batch format {version} is not known here (this is {VERSION}): upgrade this side")
    if count == 0:
        raise CorruptBatch("a batch without records")
    tags = None
    if hashes != TOO_MANY_TAGS:
        if len(data) < HEADER_BYTES + 4 * hashes + CRC_BYTES:
            raise CorruptBatch(f"a batch of {len(data)} bytes is shorter than its header")
        tags = struct.unpack_from(f"<{hashes}I", data, HEADER_BYTES)
    return Header(version, codec, count, largest, first, last, producer, sequence, unsettled, tags)


def verify(data: bytes) -> None:
    """Raise `CorruptBatch` unless the bytes of the batch match its checksum."""
    if google_crc32c.value(data) != _CRC_RESIDUE:
        raise CorruptBatch(f"a batch of {len(data)} bytes does not match its CRC-32C")


class RecordBatch:
    """A batch opened for reading. Columns are decoded when first asked for; not safe to share between threads.

    Args:
        data: the batch, whose checksum is verified here, and which is decompressed if need be.

    Raises:
        CorruptBatch: the bytes do not match their checksum, cannot be decompressed or contradict each other.
        InvalidArgument: the batch has a newer format or a codec that is not known.
    """

    __slots__ = ("_bounds", "_content", "header")

    def __init__(self, data: bytes) -> None:
        header = read_header(data)
        verify(data)
        #: What the sections are cut out of: the batch itself, or the content of its frame. Either is a `bytes`, whose
        #: first byte is aligned, and so is the first section.
        self._content, start, end = data, header.size, len(data) - CRC_BYTES
        if header.codec == CODEC_ZSTD:
            self._content = decompress(memoryview(data)[start:end])
            start, end = 0, len(self._content)
        elif header.codec != CODEC_NONE:
            raise InvalidArgument(f"codec {header.codec} of a batch is not known here: upgrade this side")
        if end - start < DIRECTORY.size:
            raise CorruptBatch(f"a batch of {len(data)} bytes has no directory of its sections")
        lengths = DIRECTORY.unpack_from(self._content, start)
        self.header = header
        self._bounds = tuple(accumulate(lengths, initial=start + DIRECTORY.size))
        if self._bounds[-1] != end:
            raise CorruptBatch(f"the sections of a batch end at {self._bounds[-1]} where they should at {end}")
        if lengths[Section.BODY_OFFSETS] != 4 * (header.count + 1):
            raise CorruptBatch(f"a batch says that it has {header.count} records, but has other columns")

    def __len__(self) -> int:
        return self.header.count

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, decompressed."""
        return len(self._content)

    def section(self, which: Section) -> memoryview:
        """Return the bytes of a section, without a copy."""
        return memoryview(self._content)[self._bounds[which] : self._bounds[which + 1]]

    def has(self, which: Section) -> bool:
        """Tell whether a section is there, which it is when at least one record needs it."""
        return bool(self._bounds[which] != self._bounds[which + 1])

    def bodies(self, first: int = 0) -> list[bytes]:
        """Return the bodies from record number `first` on."""
        return self._slices(Section.BODY_OFFSETS, Section.BODIES, first)

    def tags(self, first: int = 0) -> list[str | None]:
        """Return the tags from record number `first` on."""
        count = self.header.count - first
        if not self.has(Section.TAG_DICTIONARY):
            return [None] * count
        text = str(self.section(Section.TAG_DICTIONARY), "utf-8")
        dictionary: list[str | None] = [tag or None for tag in text.split(SEPARATOR)]
        codes = self._numbers(Section.TAG_CODES)
        if codes is None:
            return dictionary * count
        return list(map(dictionary.__getitem__, codes[first:]))

    def keys(self, index: int) -> tuple[str, ...]:
        """Return the keys of one record."""
        text = self._text(Section.KEY_OFFSETS, Section.KEYS, index)
        return tuple(text.split(SEPARATOR)) if text else ()

    def properties(self, index: int) -> dict[str, str]:
        """Return the properties of one record."""
        if not self.has(Section.PROPERTY_OFFSETS):
            return {}
        start, end = struct.unpack_from("<2i", self.section(Section.PROPERTY_OFFSETS), 4 * index)
        return {
            self._text(Section.NAME_OFFSETS, Section.NAMES, i): self._text(Section.VALUE_OFFSETS, Section.VALUES, i)
            for i in range(start, end)
        }

    def born_ms(self, index: int) -> int:
        """Return when one record was handed to its producer, in ms since 1970."""
        deltas = self._numbers(Section.BORN)
        return self.header.born_first_ms + (deltas[index] if deltas is not None else 0)

    def message_id(self, index: int) -> str:
        """Return the id of one record: 40 hexadecimal digits, the same however often the batch is sent."""
        return message_id(self.header.producer_id, self.header.sequence, index)

    def _slices(self, offsets: Section, values: Section, first: int) -> list[bytes]:
        ends = array("i")
        ends.frombytes(self.section(offsets)[4 * first :])
        if sys.byteorder == "big":
            ends.byteswap()
        bounds = ends.tolist()
        data = bytes(self.section(values))  # slicing bytes is faster than slicing a view, by more than this copy
        return [data[start:end] for start, end in pairwise(bounds)]

    def _text(self, offsets: Section, values: Section, index: int) -> str:
        if not self.has(offsets):
            return ""
        start, end = struct.unpack_from("<2i", self.section(offsets), 4 * index)
        return str(self.section(values)[start:end], "utf-8")

    def _numbers(self, which: Section) -> memoryview | array[int] | None:
        """Return a column of small numbers, or None when all are 0."""
        section = self.section(which)
        width = len(section) // self.header.count
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
