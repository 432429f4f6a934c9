"""The criterion of a search: by it brokers look for batches, and their messages are compared with it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from minimq.receiving.received import ReceivedBatch
from minimq_common.batch.header import MAX_METADATA, SEPARATOR
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import InvalidArgument
from minimq_proto.v1 import find_pb2

_ID = re.compile(r"[0-9a-fA-F]{40}", re.ASCII)
_ID_PARTS = (16, 32)


@dataclass(frozen=True, slots=True)
class Criterion:
    """The criterion of a search."""

    request: find_pb2.FindRequest
    matches: Callable[[RecordBatch], Sequence[int]]
    #: At most one message has it, but for copies.
    is_one: bool = False

    def numbers_in(self, batch: ReceivedBatch) -> Iterator[int]:
        """Yield the numbers of the wanted records of a batch. Raises `CorruptBatch` if any text of it is malformed."""
        batch.check_texts()
        yield from self.matches(batch.records)


def by_key(key: object) -> Criterion:
    """Return the criterion for messages with this key. Raises `InvalidArgument` for one that no message has."""
    text = _text(key, "the key")
    wanted, separator = text.encode(), SEPARATOR.encode()

    def matches(records: RecordBatch) -> list[int]:
        found = zip(records.numbers(), records.raw_keys(), strict=True)
        return [number for number, keys in found if wanted in keys and wanted in keys.split(separator)]

    return Criterion(find_pb2.FindRequest(key=text), matches)


def by_id(message_id: object) -> Criterion:
    """Return the criterion for the message with this id. Raises `InvalidArgument` for a text that is none."""
    if not is_id(message_id):
        raise InvalidArgument(f"{str(message_id)[:100]!r} is not the id of a message: ids have 40 hexadecimal digits")
    wanted, (first, second) = str(message_id).lower(), _ID_PARTS
    number = find_pb2.MessageNumber(producer_id=int(wanted[:first], 16), sequence=int(wanted[first:second], 16))

    def matches(records: RecordBatch) -> list[int]:
        if records.origins is None:  # the numbers in it are those in the ids
            index = int(wanted[second:], 16)
            return [index] if index < len(records) and records.message_id(index) == wanted else []
        return [each for each in records.numbers() if records.message_id(each) == wanted]

    return Criterion(find_pb2.FindRequest(message=number), matches, is_one=True)


def by_property(name: str, value: str) -> Criterion:
    """Return the criterion for messages that have a property with this value. Raises `InvalidArgument`."""
    _text(value, "the value of the property")

    def matches(records: RecordBatch) -> list[int]:
        return [number for number in records.numbers() if records.properties(number).get(name) == value]

    return Criterion(find_pb2.FindRequest(property_value=value), matches)


def is_id(text: object) -> bool:
    """Return whether this is the id of a message."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def _text(text: object, what: str) -> str:
    if not isinstance(text, str) or not text:
        raise InvalidArgument(f"{what} is {text!r}: give text")
    if SEPARATOR in text:
        raise InvalidArgument(f"{what} has a NUL character, which no message has there")
    if len(text) > MAX_METADATA:
        raise InvalidArgument(f"{what} has {len(text)} characters, which none has: the limit is {MAX_METADATA}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} has half of a surrogate pair, which no message has") from None
    return text
