"""Checks a message of the protocol against the bounds in its `.proto` file."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from minimq_common.errors import InternalError, InvalidArgument
from minimq_common.wire.protocol_bounds import MAX_FRAME_BYTES, MAX_NUMBER
from minimq_proto.v1 import options_pb2

Answer = TypeVar("Answer")

#: An error quotes this many characters of a value.
_SHOWN = 40


class _OutOfBounds(Exception):
    """A value is out of bounds. The path is completed from the innermost message outwards."""

    def __init__(self, field: str, reason: str) -> None:
        self.path = field
        self.reason = reason

    def within(self, field: str) -> _OutOfBounds:
        self.path = f"{field}.{self.path}"
        return self


class _Check:
    """The compiled bounds of one message type, in a list for each kind of bound."""

    def __init__(self) -> None:
        self._sizes: list[tuple[str, int]] = []
        self._ranges: list[tuple[str, range, bool]] = []
        #: Name, maximum of items, then the bounds of each item: its size, its range, or the check of a message.
        self._lists: list[tuple[str, int, int, range | None, _Check | None]] = []
        self._maps: list[tuple[str, int, int]] = []
        self._nested: list[tuple[str, _Check]] = []

    def __bool__(self) -> bool:
        return any((self._sizes, self._ranges, self._lists, self._maps, self._nested))

    def add(self, field: FieldDescriptor) -> None:
        name, nested, bounds = field.name, field.message_type, field.GetOptions().Extensions
        size, numbers = bounds[options_pb2.max_size], _numbers_of(bounds)
        inner = None if nested is None or bounds[options_pb2.by_item] else _checks[nested]
        if isinstance(field.default_value, list | tuple):  # older releases of protobuf lack `is_repeated`
            items = bounds[options_pb2.max_items]
            if items and nested is not None and nested.GetOptions().map_entry:
                self._maps.append((name, items, size or MAX_FRAME_BYTES))
            elif items:
                self._lists.append((name, items, size, numbers, inner))
        elif numbers is not None:
            self._ranges.append((name, numbers, field.has_presence))
        elif 0 < size < MAX_FRAME_BYTES:
            self._sizes.append((name, size))
        elif inner is not None:
            self._nested.append((name, inner))

    def __call__(self, message: Any) -> None:
        for name, most in self._sizes:
            if len(getattr(message, name)) > most:
                raise _OutOfBounds(name, _too_long(getattr(message, name), most))
        for name, numbers, optional in self._ranges:
            if getattr(message, name) not in numbers and (not optional or message.HasField(name)):
                raise _OutOfBounds(name, _out_of_range(getattr(message, name), numbers))
        for name, most, size, each_in, check in self._lists:
            if found := getattr(message, name):
                _check_list(name, found, most, size, each_in, check)
        for name, most, size in self._maps:
            _check_map(name, getattr(message, name), most, size)
        for name, inner in self._nested:
            if message.HasField(name):
                _check_message(name, getattr(message, name), inner)


def _numbers_of(bounds: Any) -> range | None:
    if options_pb2.min not in bounds and options_pb2.max not in bounds:
        return None
    return range(bounds[options_pb2.min], (bounds[options_pb2.max] or MAX_NUMBER) + 1)


class _Checks(dict[Descriptor, _Check | None]):
    """The check of each message type, compiled when it is first needed; None if the type has no bounds."""

    def __missing__(self, descriptor: Descriptor) -> _Check | None:
        check = _Check()
        for field in descriptor.fields:
            check.add(field)
        self[descriptor] = check or None
        return self[descriptor]


_checks = _Checks()


def check_bounds(message: Any) -> None:
    """Raise `InvalidArgument` if a value of a message, or of a message inside it, is out of bounds."""
    descriptor = message.DESCRIPTOR
    if (check := _checks[descriptor]) is not None:
        try:
            check(message)
        except _OutOfBounds as broken:
            raise InvalidArgument(f"{descriptor.name}.{broken.path} {broken.reason}") from None


def check_answer(answer: Answer, peer: str) -> Answer:
    """Check and return the answer of a peer. Raises `InternalError` if a value is out of bounds."""
    message: Any = answer
    if _checks[message.DESCRIPTOR] is not None:
        try:
            check_bounds(message)
        except InvalidArgument as error:
            raise InternalError(f"{peer} sent an invalid message: {error.message}") from None
    return answer


def _check_message(name: str, message: Any, check: _Check) -> None:
    try:
        check(message)
    except _OutOfBounds as broken:
        raise broken.within(name) from None


def _check_list(name: str, items: Any, most: int, size: int, numbers: range | None, check: _Check | None) -> None:
    if len(items) > most:
        raise _OutOfBounds(name, f"has {len(items)} items, the limit is {most}: split it into several requests")
    if check is not None:
        number = 0
        try:
            for item in items:
                check(item)
                number += 1
        except _OutOfBounds as broken:
            raise broken.within(f"{name}[{number}]") from None
        return
    for number, item in enumerate(items) if size or numbers else ():
        if numbers is not None and item not in numbers:
            raise _OutOfBounds(f"{name}[{number}]", _out_of_range(item, numbers))
        if size and len(item) > size:
            raise _OutOfBounds(f"{name}[{number}]", _too_long(item, size))


def _check_map(name: str, entries: Any, most: int, size: int) -> None:
    if len(entries) > most:
        raise _OutOfBounds(name, f"has {len(entries)} entries, the limit is {most}")
    for key, value in entries.items():
        if len(value) > size:
            raise _OutOfBounds(f"{name}[{key}]", _too_long(value, size))


def _too_long(value: str | bytes, most: int) -> str:
    unit = "characters" if isinstance(value, str) else "bytes"
    return f"has {len(value)} {unit}, the limit is {most}: {value[:_SHOWN]!r}..."


def _out_of_range(value: int, numbers: range) -> str:
    return f"is {value}: it is a number from {numbers.start} to {numbers.stop - 1}"
