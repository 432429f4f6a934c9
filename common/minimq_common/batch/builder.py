"""Encoding batches; `header.py` has the format."""

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
    group_hash_bytes,
    tag_hash,
)
from minimq_common.errors import InvalidArgument, MessageTooLarge
from minimq_common.model import (
    MESSAGE_GROUP,
    NO_PROPERTIES,
    Message,
    carried,
    check_empty,
    group_hash_of,
    wrong_field,
    wrong_message,
)

#: Memory overhead in bytes of a message in a builder, of its keys, of its properties, and of each property.
MESSAGE_BYTES = 112
KEYS_BYTES = 64
PROPERTIES_BYTES = 160
PROPERTY_BYTES = 96


class BatchBuilder:
    """Collects messages, a few hundred at a time, as the columns of a batch."""

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
        #: Bytes of all bodies plus characters of all keys and properties.
        self.size = 0
        self._overhead_bytes = 0
        self._bodies: list[bytes] = []
        self._lengths: list[int] = []
        self._tags: list[str | None] = []
        #: The joined keys of each record. Empty until the first record with keys, like `_properties`.
        self._keys: list[str] = []
        self._separators = 0
        self._properties: list[Mapping[str, str]] = []

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def memory(self) -> int:
        """Approximate size in memory, in bytes."""
        return self.size + self._overhead_bytes + MESSAGE_BYTES * len(self._bodies)

    def add(self, messages: Sequence[Message], lengths: list[int] | None = None) -> None:
        """Add messages without checking their topic. After an error, the builder must not be used again."""
        try:
            self._add(messages, lengths)
        except (TypeError, AttributeError) as error:
            raise InvalidArgument(wrong_message(messages) or f"a message has a wrong field: {error}") from None

    def build(self, born_ms: int | Sequence[int], producer_id: int, sequence: int, unsettled: int = 0) -> bytes:
        """Return the batch, compressed if `compression` was given and saves enough."""
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
            group_hash=0 if self._message_group is None else group_hash_of(self._message_group),
        )
        return columns.build(born_ms, producer_id, sequence, unsettled)

    def split(self, count: int) -> list[BatchBuilder]:
        """Distribute the messages evenly over `count` builders; there must be at least `count` messages."""
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
            part._overhead_bytes += KEYS_BYTES * (len(part_keys) - part_keys.count(""))
            part._separators = sum([keys.count(SEPARATOR) for keys in part_keys])
        if any(part_properties := self._properties[begin:end]):
            part._properties = part_properties
            part._overhead_bytes += _properties_overhead(part_properties)
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
        properties = carried(messages)
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
        try:
            joined = [key for (key,) in keys]  # the usual case
            has_empty = "" in joined
        except ValueError:
            joined = list(map(SEPARATOR.join, keys))
            has_empty = any("" in each for each in keys)
            counts = list(map(len, keys))
            self._separators += sum(counts) - len(counts) + counts.count(0)
        if has_empty:
            raise InvalidArgument("a key of the message is empty: leave it out, or give it at least one character")
        size = len("".join(joined))  # faster than adding the lengths
        if size > MAX_METADATA:
            check_metadata(max(map(len, joined)), "keys")
        self.size += size
        self._overhead_bytes += KEYS_BYTES * (len(keys) - joined.count(""))
        self._keys += [""] * (len(self) - len(self._keys))
        self._keys += joined

    def _encode_keys(self, sections: list[bytes]) -> None:
        if self._keys:
            sections[Section.KEY_OFFSETS], sections[Section.KEYS] = encode_strings(self._keys)
            if sections[Section.KEYS].count(b"\0") != self._separators:
                raise InvalidArgument("a key has a NUL character")

    def _add_properties(self, properties: list[Mapping[str, str]], limit: int) -> None:
        if properties.count(NO_PROPERTIES) == len(properties) and not self._properties:
            return  # fast path: `count` compares by identity first
        sizes = list(map(_characters, properties))
        check_metadata(max(sizes), "properties", limit)
        self.size += sum(sizes)
        self._overhead_bytes += _properties_overhead(properties)
        self._properties += [NO_PROPERTIES] * (len(self) - len(self._properties))
        self._properties += properties

    def _encode_properties(self, sections: list[bytes]) -> None:
        if not any(self._properties):
            return
        sections[Section.PROPERTY_OFFSETS] = offsets(list(map(len, self._properties)))
        names = [name for record in self._properties for name in record]
        values = [value for record in self._properties for value in record.values()]
        sections[Section.NAME_OFFSETS], sections[Section.NAMES] = encode_strings(names)
        sections[Section.VALUE_OFFSETS], sections[Section.VALUES] = encode_strings(values)


def lengths_of_bodies(messages: Sequence[Message]) -> list[int]:
    """Return the bytes of each body. Raises `InvalidArgument` if an item is not a message."""
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
    """Encode at least one message as one batch; see `BatchBuilder` for arguments and errors."""
    builder = BatchBuilder(max_body_bytes, compression)
    builder.add(messages)
    return builder.build(born_ms, producer_id, sequence)


def _properties_overhead(properties: list[Mapping[str, str]]) -> int:
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


def encode_strings(strings: list[str]) -> tuple[bytes, bytes]:
    text = "".join(strings)
    if text.isascii():
        return offsets(list(map(len, strings))), text.encode()
    encoded = [string.encode() for string in strings]
    return offsets(list(map(len, encoded))), b"".join(encoded)


class BatchColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The checked columns of a batch; only sequence number and born times are missing."""

    #: One per `Section`, as any bytes-like object; `Section.BORN` is empty.
    sections: list[bytes]
    #: Number of records, at least 1.
    count: int
    largest_body: int
    #: As returned by `tag_section`; `[0]` if no record has a tag.
    tag_hashes: list[int] | None
    compression: Compression | None = None
    #: Hash of the message group that all records share; 0 if they have none.
    group_hash: int = 0

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        """Bytes of all sections."""
        return sum(map(len, self.sections))

    def build(self, born_ms: int | Sequence[int], producer_id: int, sequence: int, unsettled: int = 0) -> bytes:
        """Return the batch, compressed if that saves enough; `Header` explains the numbers."""
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
            FIFO_VERSION if self.group_hash else VERSION,
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
        head = fixed + group_hash_bytes(self.group_hash) + struct.pack(f"<{listed}I", *(hashes or ())) + directory
        return with_checksum((head, *sections))


def with_checksum(parts: Sequence[bytes]) -> bytes:
    """Return a batch from its parts, any bytes-like objects, with the checksum behind them."""
    crc = 0
    for part in parts:
        if len(part):
            crc = google_crc32c.extend(crc, part)
    return b"".join((*parts, crc.to_bytes(CRC_BYTES, "little")))


def tag_section(dictionary: Sequence[str]) -> tuple[bytes, list[int] | None]:
    """Return the section of these distinct, sorted tags, and their hashes; None instead of too many hashes."""
    check_metadata(max(map(len, dictionary)), "tag")
    if any(SEPARATOR in tag for tag in dictionary):
        raise InvalidArgument("a tag has a NUL character")
    if len(dictionary) > MAX_TAGS:
        raise InvalidArgument("more than 65,536 distinct tags in one batch: put identifiers into keys, not into tags")
    hashes = sorted({tag_hash(tag) for tag in dictionary}) if len(dictionary) <= MAX_TAG_HASHES else None
    return SEPARATOR.join(dictionary).encode(), hashes


def check_metadata(largest: int, what: Literal["tag", "keys", "properties"], limit: int = MAX_METADATA) -> None:
    """Raise `InvalidArgument` if the tag, the keys or the properties of a message have too many characters."""
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
    """Encode a column of offsets from the lengths of its values."""
    return struct.pack(f"<{len(lengths) + 1}i", *accumulate(lengths, initial=0))  # twice as fast as an `array`


def narrow(numbers: Sequence[int], largest: int) -> bytes:
    """Encode numbers in 1, 2 or 4 bytes each, or in none if all are 0."""
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
