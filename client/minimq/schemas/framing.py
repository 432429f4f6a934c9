"""The mark that names the schema of a body, as the clients of schema registries write it.

With framing `prefix` it precedes the body: a magic byte of 0 and the id of the schema in 4 bytes, big endian. With
framing `header` it is a property: a magic byte of 1 and the 16 bytes of the schema's GUID, as hexadecimal digits, since
properties are text. For Protobuf the indexes of the message follow in both: their number and each of them, as zigzag
varints; the first message of a file is a single 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from minimq_common.errors import InvalidArgument, MalformedBody

#: The property with the mark, for framing `header`.
SCHEMA_ID_PROPERTY = "__value_schema_id"

_ID_MAGIC, _GUID_MAGIC = 0, 1
_ID_BYTES, _GUID_BYTES = 4, 16
#: Registries count ids from 1, in Java's integers.
_MAX_ID = (1 << 31) - 1
#: Far above the nesting of messages, and the number of messages in a file, that occur in practice.
_MAX_INDEXES, _MAX_INDEX = 32, 10_000
_MAX_VARINT_BYTES = 4
_FIRST_MESSAGE = (0,)


class HasBody(Protocol):
    """A received message of any kind, or a reply."""

    @property
    def body(self) -> bytes:
        """The payload."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Names and values."""


class SchemaMark(NamedTuple):
    """The mark of a body."""

    schema_id: int | UUID
    indexes: tuple[int, ...]
    start: int

    def __str__(self) -> str:
        return f"schema {'GUID' if isinstance(self.schema_id, UUID) else 'id'} {self.schema_id}"


def prefix_mark(schema_id: int, indexes: Sequence[int] = ()) -> bytes:
    """Return the mark to put before a body. Raises `InvalidArgument` for an id out of range."""
    if not 0 <= schema_id <= _MAX_ID:
        raise InvalidArgument(f"schema id {schema_id} is not between 0 and {_MAX_ID}")
    return bytes((_ID_MAGIC,)) + schema_id.to_bytes(_ID_BYTES) + _written_indexes(indexes)


def header_mark(guid: UUID, indexes: Sequence[int] = ()) -> str:
    """Return the mark to put into the property."""
    return (bytes((_GUID_MAGIC,)) + guid.bytes + _written_indexes(indexes)).hex()


def mark_of(message: HasBody, *, has_indexes: bool) -> SchemaMark:
    """Return the mark of a message. Raises `MalformedBody` if it has none."""
    marked = message.properties.get(SCHEMA_ID_PROPERTY)
    if marked is None:
        return read_prefix(message.body, has_indexes=has_indexes)
    return read_header(marked, has_indexes=has_indexes)


def read_prefix(body: bytes, *, has_indexes: bool) -> SchemaMark:
    """Return the mark before a body. Raises `MalformedBody` if there is none."""
    if not body:
        raise MalformedBody("the body is empty: a tombstone has no value, check is_tombstone first")
    schema_id: int | UUID
    if body[0] == _ID_MAGIC and len(body) > _ID_BYTES:
        end = 1 + _ID_BYTES
        schema_id = int.from_bytes(body[1:end])
        if schema_id > _MAX_ID:
            raise MalformedBody(f"the body names schema id {schema_id}, which no registry gives")
    elif body[0] == _GUID_MAGIC and len(body) > _GUID_BYTES:
        end = 1 + _GUID_BYTES
        schema_id = UUID(bytes=bytes(body[1:end]))
    else:
        raise MalformedBody(
            f"the body of {len(body)} bytes begins with {bytes(body[:5]).hex()}, which is no mark of a schema: it was "
            "sent without a schema registry"
        )
    indexes, start = _read_indexes(body, end) if has_indexes else ((), end)
    return SchemaMark(schema_id, indexes, start)


def read_header(text: str, *, has_indexes: bool) -> SchemaMark:
    """Return the mark in a property; the payload is the whole body. Raises `MalformedBody` if it is malformed."""
    try:
        mark = bytes.fromhex(text) if len(text) <= 2 * (1 + _GUID_BYTES + _MAX_VARINT_BYTES * _MAX_INDEXES) else b""
    except ValueError:
        mark = b""
    if len(mark) <= _GUID_BYTES or mark[0] != _GUID_MAGIC:
        raise MalformedBody(f"property {SCHEMA_ID_PROPERTY} is {text[:40]!r}, which is no mark of a schema")
    return read_prefix(mark, has_indexes=has_indexes)._replace(start=0)


def _written_indexes(indexes: Sequence[int]) -> bytes:
    if not indexes:
        return b""
    if tuple(indexes) == _FIRST_MESSAGE:
        return b"\0"
    return b"".join(map(_varint, (len(indexes), *indexes)))


def _varint(number: int) -> bytes:
    left, written = number << 1, bytearray()
    while left > 0x7F:
        written.append(left & 0x7F | 0x80)
        left >>= 7
    written.append(left)
    return bytes(written)


def _read_indexes(body: bytes, at: int) -> tuple[tuple[int, ...], int]:
    count, at = _read_varint(body, at)
    if count == 0:
        return _FIRST_MESSAGE, at
    if not 0 < count <= _MAX_INDEXES:
        raise MalformedBody(f"the mark of the schema has {count} message indexes; there may be 1 to {_MAX_INDEXES}")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(body, at)
        if not 0 <= index <= _MAX_INDEX:
            raise MalformedBody(f"the mark of the schema has message index {index}; the largest is {_MAX_INDEX}")
        indexes.append(index)
    return tuple(indexes), at


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index, byte in enumerate(body[at : at + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at + index + 1
    raise MalformedBody("the message indexes in the mark of the schema do not end")
