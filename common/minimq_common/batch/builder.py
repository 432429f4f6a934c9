"""Making batches: see `header.py` for the format."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Literal

import google_crc32c
import msgspec

from minimq_common.batch.compression import Compression
from minimq_common.batch.header import (
    CODEC_NONE,
    CODEC_ZSTD,
    CRC_BYTES,
    DIRECTORY,
    FIFO_VERSION,
    HEADER,
    MAX_COPY_METADATA,
    MAX_METADATA,
    MAX_TAG,
    MAX_TAG_HASHES,
    MAX_TAGS,
    SEPARATOR,
    TOO_MANY_TAGS,
    VERSION,
    Section,
    lane_bytes,
    tag_hash,
)
from minimq_common.batch.message_fields import check_empty, wrong_field, wrong_message
from minimq_common.errors import InvalidArgument, MessageTooLarge
from minimq_common.model import NO_PROPERTIES, Message
from minimq_common.properties import MESSAGE_GROUP, lane_of

#: Bytes of memory besides the content: for a message in a builder, its keys, its properties, and each property.
MESSAGE_BYTES = 112
KEYS_BYTES = 64
PROPERTIES_BYTES = 160
PROPERTY_BYTES = 96


class BatchBuilder:
    """Gathers the columns of a batch from messages, a few hundred at a time.

    Messages are let go as soon as their columns are taken, so that they never leave the processor's cache, nor grow
    old enough to burden the garbage collector.
    """

    def __init__(
        self,
        max_body_bytes: int,
        compression: Compression | None = None,
        message_group: str | None = None,
        *,
        is_compacted: bool | None = None,
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._compression = compression
        self._message_group = message_group
        self._is_compacted = is_compacted
        #: Bytes of all bodies, and characters of all keys and properties.
        self.size = 0
        #: Approximate memory of keys and properties besides their characters, in bytes.
        self._beside = 0
        self._bodies: list[bytes] = []
        self._lengths: list[int] = []
        self._tags: list[str | None] = []
        #: The joined keys of each record; shorter than the other columns as long as no record has any.
        self._keys: list[str] = []
        self._separators = 0
        self._properties: list[Mapping[str, str]] = []

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def memory(self) -> int:
        """Approximate size in memory, in bytes."""
        return self.size + self._beside + MESSAGE_BYTES * len(self._bodies)

    def add(self, messages: Sequence[Message], lengths: list[int] | None = None) -> None:
        """Take messages in; their topic is not looked at. After an error the builder must not be used."""
        try:
            self._add(messages, lengths)
        except (TypeError, AttributeError) as error:
            raise InvalidArgument(wrong_message(messages) or f"a message has a wrong field: {error}") from None

    def build(self, born_ms: int | Sequence[int], producer_id: int, sequence: int, unsettled: int = 0) -> bytes:
        """Return the batch, compressed where that was asked for and is worth it."""
        sections = [b""] * len(Section)
        sections[Section.BODY_OFFSETS] = offsets(self._lengths)
        try:
            sections[Section.BODIES] = b"".join(self._bodies)
            hashes = _encode_tags(sections, self._tags)
            self._encode_keys(sections)
            self._encode_properties(sections)
        except (TypeError, AttributeError, UnicodeEncodeError) as error:
            joined = [(keys,) for keys in self._keys]
            found = wrong_field(self._bodies, self._tags, joined, self._properties)
            raise InvalidArgument(found or f"a message has a wrong field: {error}") from None
        columns = BatchColumns(
            sections=sections,
            count=len(self),
            largest_body=max(self._lengths),
            tag_hashes=hashes,
            compression=self._compression,
            lane=0 if self._message_group is None else lane_of(self._message_group),
        )
        return columns.build(born_ms, producer_id, sequence, unsettled)

    def split(self, count: int) -> list[BatchBuilder]:
        """Return the messages in so many builders, at most as many as there are messages, as even as can be."""
        if sum([keys.count(SEPARATOR) for keys in self._keys]) != self._separators:
            raise InvalidArgument("a key has a NUL character")
        ends = [len(self) * part // count for part in range(1, count + 1)]
        return [self._part(begin, end) for begin, end in pairwise([0, *ends])]

    def _part(self, begin: int, end: int) -> BatchBuilder:
        part = BatchBuilder(self._max_body_bytes, self._compression, self._message_group)
        part._bodies = self._bodies[begin:end]
        part._lengths = self._lengths[begin:end]
        part._tags = self._tags[begin:end]
        if any(part_keys := self._keys[begin:end]):
            part._keys = part_keys
            part._beside += KEYS_BYTES * (len(part_keys) - part_keys.count(""))
            part._separators = sum([keys.count(SEPARATOR) for keys in part_keys])
        if any(part_properties := self._properties[begin:end]):
            part._properties = part_properties
            part._beside += _beside_properties(part_properties)
        part.size = sum(part._lengths) + len("".join(part._keys)) + sum(map(_characters, part._properties))
        return part

    def _add(self, messages: Sequence[Message], lengths: list[int] | None) -> None:
        bodies = [message.body for message in messages]
        lengths = lengths or list(map(len, bodies))
        largest = max(lengths)
        if self._is_compacted is not None and not all(lengths):
            for message in messages:
                check_empty(message, is_compacted=self._is_compacted)
        if largest > self._max_body_bytes:
            raise MessageTooLarge(
                f"a message body has {largest} bytes, the limit is {self._max_body_bytes}: "
                "send it in parts, or raise max_body_bytes of the producer and of the brokers"
            )
        self._add_keys([message.keys for message in messages])
        properties = [message.properties for message in messages]
        if self._message_group is not None:
            properties = [{**each, MESSAGE_GROUP: self._message_group} for each in properties]
        is_copy = str(messages[0].topic).startswith("%")
        self._add_properties(properties, MAX_METADATA + MAX_COPY_METADATA if is_copy else MAX_METADATA)
        self._tags += [message.tag for message in messages]
        self._bodies += bodies
        self._lengths += lengths
        self.size += sum(lengths)

    def _add_keys(self, keys: list[Sequence[str]]) -> None:
        if not self._keys and not any(keys):
            return
        if str in set(map(type, keys)):
            raise InvalidArgument("keys of a message are a list of strings; a single string was given")
        counts = list(map(len, keys))
        without = 0
        if counts.count(1) == len(counts):  # as most have it
            joined = [key for (key,) in keys]
        else:
            joined = list(map(SEPARATOR.join, keys))
            without = counts.count(0)
            self._separators += sum(counts) - len(counts) + without
        size = len("".join(joined))  # the fastest sum there is
        if size > MAX_METADATA:
            check_metadata(max(map(len, joined)), "keys")
        self.size += size
        self._beside += KEYS_BYTES * (len(keys) - without)
        self._keys += [""] * (len(self) - len(self._keys))
        self._keys += joined

    def _encode_keys(self, sections: list[bytes]) -> None:
        if self._keys:
            sections[Section.KEY_OFFSETS], sections[Section.KEYS] = _encode_strings(self._keys)
            if sections[Section.KEYS].count(b"\0") != self._separators:
                raise InvalidArgument("a key has a NUL character")

    def _add_properties(self, properties: list[Mapping[str, str]], limit: int) -> None:
        if properties.count(NO_PROPERTIES) == len(properties) and not self._properties:
            return  # told by identity, at the speed of C
        sizes = list(map(_characters, properties))
        check_metadata(max(sizes), "properties", limit)
        self.size += sum(sizes)
        self._beside += _beside_properties(properties)
        self._properties += [NO_PROPERTIES] * (len(self) - len(self._properties))
        self._properties += properties

    def _encode_properties(self, sections: list[bytes]) -> None:
        if not any(self._properties):
            return
        sections[Section.PROPERTY_OFFSETS] = offsets(list(map(len, self._properties)))
        names = [name for record in self._properties for name in record]
        values = [value for record in self._properties for value in record.values()]
        sections[Section.NAME_OFFSETS], sections[Section.NAMES] = _encode_strings(names)
        sections[Section.VALUE_OFFSETS], sections[Section.VALUES] = _encode_strings(values)


def lengths_of_bodies(messages: Sequence[Message]) -> list[int]:
    """Return the bytes of each body. Raises `InvalidArgument` when something is not a message."""
    try:
        return [len(message.body) for message in messages]
    except (TypeError, AttributeError) as error:
        raise InvalidArgument(wrong_message(messages) or f"a message has a wrong body: {error}") from None


def encode(
    messages: Sequence[Message],
    born_ms: int | Sequence[int],
    producer_id: int,
    sequence: int,
    max_body_bytes: int,
    compression: Compression | None = None,
) -> bytes:
    """Return messages, at least one, as one batch; see `BatchBuilder` for arguments and errors."""
    builder = BatchBuilder(max_body_bytes, compression)
    builder.add(messages)
    return builder.build(born_ms, producer_id, sequence)


def _beside_properties(properties: list[Mapping[str, str]]) -> int:
    return PROPERTIES_BYTES * sum(map(bool, properties)) + PROPERTY_BYTES * sum(map(len, properties))


def _characters(properties: Mapping[str, str]) -> int:
    return sum(map(len, properties)) + sum(map(len, properties.values()))


def _encode_tags(sections: list[bytes], tags: list[str | None]) -> list[int] | None:
    distinct = set(tags)
    if distinct == {None}:
        return [0]
    dictionary = sorted(tag or "" for tag in distinct)
    sections[Section.TAG_DICTIONARY], hashes = tag_section(dictionary)
    if len(dictionary) > 1:
        codes: dict[str | None, int] = {tag: code for code, tag in enumerate(dictionary)}
        if None in distinct:
            codes[None] = codes[""]
        sections[Section.TAG_CODES] = narrow(list(map(codes.__getitem__, tags)), len(dictionary) - 1)
    return hashes


def _encode_strings(strings: list[str]) -> tuple[bytes, bytes]:
    text = "".join(strings)
    if text.isascii():
        return offsets(list(map(len, strings))), text.encode()
    encoded = [string.encode() for string in strings]
    return offsets(list(map(len, encoded))), b"".join(encoded)


class BatchColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The checked columns of a batch, which lacks nothing but its number and when its messages were born."""

    #: One for each `Section`, of bytes or anything that Python can read as bytes; that of born times is left empty.
    sections: list[bytes]
    #: Number of records, at least one.
    count: int
    largest_body: int
    #: As `tag_section` returns them; `[0]` when no record has a tag.
    tag_hashes: list[int] | None
    compression: Compression | None = None
    #: Of the message group that all records have; 0 when they have none.
    lane: int = 0

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        """Bytes of all sections."""
        return sum(map(len, self.sections))

    def build(self, born_ms: int | Sequence[int], producer_id: int, sequence: int, unsettled: int = 0) -> bytes:
        """Return the batch, compressed where that was asked for and is worth it; `Header` says what the numbers are.

        Raises `InvalidArgument` if the messages were born too long after each other.
        """
        sections = list(self.sections)
        sections[Section.BORN], first_ms, last_ms = _encode_born(born_ms)
        directory = DIRECTORY.pack(*map(len, sections))
        codec = CODEC_NONE
        if self.compression is not None:
            frame = self.compression.compress((directory, *sections))
            if frame is not None:
                codec, directory, sections = CODEC_ZSTD, b"", [frame]
        hashes = self.tag_hashes
        listed = 0 if hashes is None else len(hashes)
        fixed = HEADER.pack(
            FIFO_VERSION if self.lane else VERSION,
            codec,
            TOO_MANY_TAGS if hashes is None else listed,
            self.count,
            self.largest_body,
            first_ms,
            last_ms,
            producer_id,
            sequence,
            unsettled,
        )
        head = fixed + lane_bytes(self.lane) + struct.pack(f"<{listed}I", *(hashes or ())) + directory
        crc = google_crc32c.value(head)
        for section in sections:
            if len(section):
                crc = google_crc32c.extend(crc, section)
        return b"".join((head, *sections, crc.to_bytes(CRC_BYTES, "little")))


def tag_section(dictionary: Sequence[str]) -> tuple[bytes, list[int] | None]:
    """Return the section of distinct tags, which are sorted, and their hashes, None when these are too many to list."""
    check_metadata(max(map(len, dictionary)), "tag")
    if any(SEPARATOR in tag for tag in dictionary):
        raise InvalidArgument("a tag has a NUL character")
    if len(dictionary) > MAX_TAGS:
        raise InvalidArgument("more than 65,536 distinct tags in one batch: put identifiers into keys, not into tags")
    hashes = sorted({tag_hash(tag) for tag in dictionary}) if len(dictionary) <= MAX_TAG_HASHES else None
    return SEPARATOR.join(dictionary).encode(), hashes


def check_metadata(largest: int, what: Literal["tag", "keys", "properties"], limit: int = MAX_METADATA) -> None:
    """Raise `InvalidArgument` when the tag, the keys or the properties of a message have too many characters."""
    if what == "tag" and largest > MAX_TAG:
        raise InvalidArgument(
            f"the tag of a message has {largest} characters, the limit is {MAX_TAG}: put identifiers into keys, and "
            "text into a property"
        )
    if largest > limit:
        raise InvalidArgument(
            f"the {what} of a message have {largest} characters, the limit is {limit}: put it into the body"
        )


def offsets(lengths: Sequence[int]) -> bytes:
    """Return where the values of a column with these lengths begin, and where the last one ends."""
    return struct.pack(f"<{len(lengths) + 1}i", *accumulate(lengths, initial=0))  # half the time of an `array`


def narrow(numbers: Sequence[int], largest: int) -> bytes:
    """Return small numbers in the fewest bytes each; nothing at all when all are 0."""
    if largest == 0:
        return b""
    if largest < 1 << 8:
        return bytes(numbers)
    return struct.pack(f"<{len(numbers)}{'H' if largest < 1 << 16 else 'I'}", *numbers)


def _encode_born(born_ms: int | Sequence[int]) -> tuple[bytes, int, int]:
    if isinstance(born_ms, int):
        return b"", born_ms, born_ms
    first, last = min(born_ms), max(born_ms)
    if last - first >= 1 << 32:
        raise InvalidArgument("the messages of one batch were born more than 49 days apart")
    return narrow([born - first for born in born_ms], last - first), first, last
