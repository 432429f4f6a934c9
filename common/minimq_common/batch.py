"""The batch format: many records as columns in one `bytes`, made once by a producer and opened only by a reader.

A batch is the unit of sending, storing, replicating and reading, so that a broker never touches a message. It is::

    header      fixed part (`_HEADER`), then one 32-bit hash for each distinct tag
    directory   length of each of the sections that follow, as 32-bit integers
    sections    in the order of `Section`; a column that no record uses has length 0
    checksum    CRC-32C of everything before it

All numbers are little-endian. Offsets are 32-bit and count + 1 long, which is Arrow's layout for binary columns:
a reader that wants Arrow arrays takes the buffers as they are.

A batch does not know its topic, its queue or its offsets: it can be sent again to another queue as it is.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise

import google_crc32c

from minimq_common.errors import CorruptBatch, InvalidArgument, MessageTooLarge
from minimq_common.model import NO_PROPERTIES, Message

VERSION = 1
CODEC_NONE = 0

#: version, codec, number of tag hashes, count, first and last born time, producer id, sequence number.
_HEADER = struct.Struct("<BBHIqqQQ")
HEADER_BYTES = _HEADER.size
_CRC_BYTES = 4
#: The CRC-32C of any bytes followed by their own CRC-32C: so a batch is verified whole, without a copy of a part.
_CRC_RESIDUE = 0x48674BC7
#: Written instead of the number of hashes when a batch has more distinct tags than are worth listing.
_TOO_MANY_TAGS = 0xFFFF
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


_DIRECTORY = struct.Struct(f"<{len(Section)}I")


@dataclass(frozen=True, slots=True)
class Header:
    """What can be known of a batch without opening it."""

    version: int
    codec: int
    count: int
    born_first_ms: int
    born_last_ms: int
    producer_id: int
    sequence: int
    #: Sorted hashes of the tags in the batch (0 for "no tag"); None when there are too many to list.
    tag_hashes: tuple[int, ...] | None

    @property
    def size(self) -> int:
        """Length of the header in bytes."""
        return HEADER_BYTES + 4 * len(self.tag_hashes or ())


def tag_hash(tag: str | None) -> int:
    """Return the 32-bit hash by which brokers tell tags apart; the same in every process and release."""
    return int(google_crc32c.value(tag.encode())) if tag else 0


def read_header(data: bytes | memoryview) -> Header:
    """Return the header of a batch. Raises `CorruptBatch` when it cannot be one, `InvalidArgument` when it is newer."""
    if len(data) < HEADER_BYTES + _DIRECTORY.size + _CRC_BYTES:
        raise CorruptBatch(f"a batch of {len(data)} bytes is shorter than its header")
    version, codec, hashes, count, first, last, producer, sequence = _HEADER.unpack_from(data)
    if version != VERSION:
        raise InvalidArgument(f"batch format {version} is not known here (this is {VERSION}): upgrade this side")
    if count == 0:
        raise CorruptBatch("a batch without records")
    tags = None
    if hashes != _TOO_MANY_TAGS:
        if len(data) < HEADER_BYTES + 4 * hashes + _DIRECTORY.size + _CRC_BYTES:
            raise CorruptBatch(f"a batch of {len(data)} bytes is shorter than its header")
        tags = struct.unpack_from(f"<{hashes}I", data, HEADER_BYTES)
    return Header(version, codec, count, first, last, producer, sequence, tags)


def verify(data: bytes) -> None:
    """Raise `CorruptBatch` unless the bytes of the batch match its checksum."""
    if google_crc32c.value(data) != _CRC_RESIDUE:
        raise CorruptBatch(f"a batch of {len(data)} bytes does not match its CRC-32C")


def encode(
    messages: Sequence[Message],
    born_ms: int | Sequence[int],
    producer_id: int,
    sequence: int,
    max_body_bytes: int,
) -> bytes:
    """Return the messages as one batch.

    Args:
        messages: at least one; their topic is not looked at.
        born_ms: when they were handed in, in ms since 1970: one time for all, or one for each.
        producer_id: 64 random bits of the producer.
        sequence: number of the batch at that producer. Both together are the id of the batch.
        max_body_bytes: largest body that is let through.

    Raises:
        InvalidArgument: a body is empty or not bytes, or a tag, key or property is not text or has a NUL.
        MessageTooLarge: a body is over the limit.
    """
    sections = [b""] * len(Section)
    try:
        _encode_bodies(sections, [message.body for message in messages], max_body_bytes)
        hashes = _encode_tags(sections, [message.tag for message in messages])
        _encode_keys(sections, [message.keys for message in messages])
        _encode_properties(sections, [message.properties for message in messages])
    except (TypeError, AttributeError) as error:
        raise InvalidArgument(f"a message has a field of a wrong type: {error}") from error
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"a message has text that is not Unicode: {error}") from error
    first, last = _encode_born(sections, born_ms)
    listed = 0 if hashes is None else len(hashes)
    fixed = _HEADER.pack(
        VERSION,
        CODEC_NONE,
        _TOO_MANY_TAGS if hashes is None else listed,
        len(messages),
        first,
        last,
        producer_id,
        sequence,
    )
    head = fixed + struct.pack(f"<{listed}I", *(hashes or ())) + _DIRECTORY.pack(*map(len, sections))
    crc = google_crc32c.value(head)
    for section in sections:
        if section:
            crc = google_crc32c.extend(crc, section)
    return b"".join((head, *sections, crc.to_bytes(_CRC_BYTES, "little")))


def _offsets(lengths: Iterable[int]) -> bytes:
    return _little(array("i", accumulate(lengths, initial=0)))


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _narrow(numbers: Sequence[int], largest: int) -> bytes:
    """Return small numbers in the fewest bytes each; nothing at all when all are 0."""
    if largest == 0:
        return b""
    if largest < 1 << 8:
        return bytes(numbers)
    return _little(array("H" if largest < 1 << 16 else "I", numbers))


def _encode_bodies(sections: list[bytes], bodies: list[bytes], max_body_bytes: int) -> None:
    lengths = list(map(len, bodies))
    if min(lengths) == 0:
        raise InvalidArgument("a message has an empty body: give it at least one byte")
    if max(lengths) > max_body_bytes:
        raise MessageTooLarge(
            f"a message body has {max(lengths)} bytes, the limit is {max_body_bytes}: "
            "send it in parts, or raise max_body_bytes of the producer and of the brokers"
        )
    sections[Section.BODY_OFFSETS] = _offsets(lengths)
    sections[Section.BODIES] = b"".join(bodies)


def _encode_tags(sections: list[bytes], tags: list[str | None]) -> list[int] | None:
    distinct = set(tags)
    if distinct == {None}:
        return [0]
    dictionary = sorted(tag or "" for tag in distinct)
    if any(SEPARATOR in tag for tag in dictionary):
        raise InvalidArgument("a tag has a NUL character")
    if len(dictionary) > 1 << 16:
        raise InvalidArgument("more than 65,536 distinct tags in one batch: put identifiers into keys, not into tags")
    if len(dictionary) > 1:
        codes: dict[str | None, int] = {tag: code for code, tag in enumerate(dictionary)}
        if None in distinct:
            codes[None] = codes[""]
        sections[Section.TAG_CODES] = _narrow(list(map(codes.__getitem__, tags)), len(dictionary) - 1)
    sections[Section.TAG_DICTIONARY] = SEPARATOR.join(dictionary).encode()
    return sorted({tag_hash(tag) for tag in dictionary}) if len(dictionary) <= MAX_TAG_HASHES else None


def _encode_keys(sections: list[bytes], keys: list[Sequence[str]]) -> None:
    if not any(keys):
        return
    if str in set(map(type, keys)):
        raise InvalidArgument("keys of a message are a list of strings; a single string was given")
    strings = [key[0] if len(key) == 1 else SEPARATOR.join(key) for key in keys]
    sections[Section.KEY_OFFSETS], sections[Section.KEYS] = _encode_strings(strings)
    separators = sections[Section.KEYS].count(b"\0")
    if separators and separators != sum(map(len, keys)) - sum(map(bool, keys)):
        raise InvalidArgument("a key has a NUL character")


def _encode_strings(strings: list[str]) -> tuple[bytes, bytes]:
    """Return offsets and bytes of a column of text."""
    text = "".join(strings)
    if text.isascii():
        return _offsets(map(len, strings)), text.encode()
    encoded = [string.encode() for string in strings]
    return _offsets(map(len, encoded)), b"".join(encoded)


def _encode_properties(sections: list[bytes], properties: list[Mapping[str, str]]) -> None:
    if properties.count(NO_PROPERTIES) == len(properties):  # tells by identity, at the speed of C
        return
    sections[Section.PROPERTY_OFFSETS] = _offsets(map(len, properties))
    names = [name for record in properties for name in record]
    values = [value for record in properties for value in record.values()]
    sections[Section.NAME_OFFSETS], sections[Section.NAMES] = _encode_strings(names)
    sections[Section.VALUE_OFFSETS], sections[Section.VALUES] = _encode_strings(values)


def _encode_born(sections: list[bytes], born_ms: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(born_ms, int):
        return born_ms, born_ms
    first, last = min(born_ms), max(born_ms)
    if last - first >= 1 << 32:
        raise InvalidArgument("the messages of one batch were born more than 49 days apart")
    sections[Section.BORN] = _narrow([born - first for born in born_ms], last - first)
    return first, last


class RecordBatch:
    """A batch opened for reading. Columns are decoded when first asked for; not safe to share between threads.

    Args:
        data: the batch, whose checksum is verified here.

    Raises:
        CorruptBatch: the bytes do not match their checksum or contradict each other.
        InvalidArgument: the batch has a newer format or a codec that is not known.
    """

    __slots__ = ("_bounds", "data", "header")

    def __init__(self, data: bytes) -> None:
        header = read_header(data)
        verify(data)
        if header.codec != CODEC_NONE:
            raise InvalidArgument(f"codec {header.codec} of a batch is not known here: upgrade this side")
        start = header.size
        lengths = _DIRECTORY.unpack_from(data, start)
        self.data = data
        self.header = header
        self._bounds = tuple(accumulate(lengths, initial=start + _DIRECTORY.size))
        if self._bounds[-1] + _CRC_BYTES != len(data):
            raise CorruptBatch(f"the sections of a batch of {len(data)} bytes end at {self._bounds[-1]}")
        if lengths[Section.BODY_OFFSETS] != 4 * (header.count + 1):
            raise CorruptBatch(f"a batch says that it has {header.count} records, but has other columns")

    def __len__(self) -> int:
        return self.header.count

    def section(self, which: Section) -> memoryview:
        """Return the bytes of a section, without a copy."""
        return memoryview(self.data)[self._bounds[which] : self._bounds[which + 1]]

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
