"""Fast paths for one message: checking it, so that it cannot fail a batch of others, and encoding it alone."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import google_crc32c

from minimq_common.batch.builder import BatchBuilder, encode_strings
from minimq_common.batch.header import (
    CODEC_NONE,
    CRC_BYTES,
    HEADER,
    MAX_METADATA,
    MAX_TAG,
    SEPARATOR,
    VERSION,
    Section,
    tag_hash,
)
from minimq_common.model import CARRIED, NO_PROPERTIES, Message, check_message_group

#: The fixed part of the header, one tag hash, the directory, and the offsets of the body.
_HEAD = struct.Struct(f"{HEADER.format}I{len(Section)}I2i")
_KEY_OFFSETS = struct.Struct("<2i")


def encode_single(
    message: Message, max_body_bytes: int, born_ms: int, producer_id: int, sequence: int, unsettled: int
) -> bytes | None:
    """Encode a message that `check_message` accepted to the same bytes as `BatchBuilder`, in a fifth of the time."""
    body, properties = message.body, message.properties
    if type(body) is not bytes:
        return None
    is_mutable = type(message.keys) is not tuple or properties is not NO_PROPERTIES
    for name in CARRIED:
        if getattr(message, name) is not None:
            return None
    if is_mutable and plain_size(message, max_body_bytes) is None:
        return None
    size = len(body)
    tag = message.tag.encode() if message.tag else b""
    if message.keys:
        keys = SEPARATOR.join(message.keys).encode()
        key_offsets = _KEY_OFFSETS.pack(0, len(keys))
    else:
        keys = key_offsets = b""
    numbers, texts, number_sizes, text_sizes = _property_columns(properties) if properties else _NO_COLUMNS
    fixed = (
        VERSION,
        CODEC_NONE,
        1,
        1,
        size,
        born_ms,
        born_ms,
        producer_id,
        sequence,
        unsettled,
        tag_hash(message.tag) if tag else 0,
    )
    directory = (8, len(key_offsets), *number_sizes, 0, 0, len(tag), len(keys), *text_sizes, size)
    head = b"".join((_HEAD.pack(*fixed, *directory, 0, size), key_offsets, numbers, tag, keys, texts))
    crc = google_crc32c.extend(google_crc32c.value(head), body)
    return b"".join((head, body, crc.to_bytes(CRC_BYTES, "little")))


#: The numbers and the texts of properties, and the sizes of their sections.
_Columns = tuple[bytes, bytes, tuple[int, int, int], tuple[int, int]]
_NO_COLUMNS: _Columns = (b"", b"", (0, 0, 0), (0, 0))


def _property_columns(properties: Mapping[str, str]) -> _Columns:
    number = _KEY_OFFSETS.pack(0, len(properties))
    name_offsets, names = encode_strings([*properties])
    value_offsets, values = encode_strings([*properties.values()])
    numbers = number + name_offsets + value_offsets
    return numbers, names + values, (len(number), len(name_offsets), len(value_offsets)), (len(names), len(values))


_LISTS = (list, tuple)
_TEXT = {str}


def check_message(message: Message, max_body_bytes: int) -> int:
    """Return bytes of the body plus characters of keys and properties. Raises `InvalidArgument`."""
    if message.message_group is not None:
        check_message_group(message.message_group)
    size = plain_size(message, max_body_bytes)
    if size is not None:
        return size
    # The rules are in one place: every message that `BatchBuilder` can encode is valid.
    records = BatchBuilder(max_body_bytes, message_group=message.message_group)
    records.add([message])
    records.build(0, 0, 0)
    return records.size


def plain_size(message: Message, max_body_bytes: int) -> int | None:
    """Return the size of a valid message whose tag, keys and properties are ASCII; None for any other."""
    body, tag, keys, properties = message.body, message.tag, message.keys, message.properties
    if type(body) is not bytes or len(body) > max_body_bytes or type(keys) not in _LISTS:
        return None
    for name in CARRIED:
        if getattr(message, name) is not None:
            return None
    size = len(body)
    if properties is not NO_PROPERTIES:
        characters = _plain_characters(properties)
        if characters is None:
            return None
        size += characters
    if tag is None and not keys:
        return size
    characters = _plain_texts(tag, keys)
    return None if characters is None else size + characters


def _plain_texts(tag: str | None, keys: Sequence[str]) -> int | None:
    """Return the characters of keys; None if they or the tag are not plain."""
    texts = keys if tag is None else (tag, *keys)
    if set(map(type, texts)) != _TEXT or "" in keys or (tag and len(tag) > MAX_TAG):
        return None
    joined = SEPARATOR.join(texts)
    if not joined.isascii() or joined.count(SEPARATOR) >= len(texts) or len(joined) > MAX_METADATA:
        return None
    return len(joined) if tag is None else max(len(joined) - len(tag) - 1, 0)


def _plain_characters(properties: object) -> int | None:
    if type(properties) is not dict:
        return None
    try:
        text = "".join((*properties, *properties.values()))
    except TypeError:  # not text
        return None
    return len(text) if len(text) <= MAX_METADATA and text.isascii() else None
