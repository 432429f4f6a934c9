"""Checks a message of the protocol against the table of bounds, in one walk. Pure."""

from __future__ import annotations

from typing import Any, TypeVar

from minimq_common.errors import InternalError, InvalidArgument
from minimq_common.wire.bound_kinds import Bound, Entries, Items, Octets, Range, Text
from minimq_common.wire.protocol_bounds import MAX_FRAME_BYTES, PACKAGE
from minimq_common.wire.server_bounds import ALL_BOUNDS

Answer = TypeVar("Answer")

#: Characters of a value that an error shows.
_SHOWN = 40

#: A message of protobuf, or its descriptor: this module knows them by their attributes alone.
_Message = Any
_Descriptor = Any


class _OutOfBounds(Exception):
    """A value is out of its bound; says where, from the innermost message outwards, and why."""

    def __init__(self, field: str, reason: str) -> None:
        self.path = field
        self.reason = reason

    def within(self, field: str) -> _OutOfBounds:
        self.path = f"{field}.{self.path}"
        return self


class _Check:
    """The bounds of one type of message by their kinds, so that a message is checked in one call."""

    def __init__(self) -> None:
        self._lengths: list[tuple[str, int, Text | Octets]] = []
        self._ranges: list[tuple[str, int, int, bool]] = []
        self._items: list[tuple[str, Items, _Check | None]] = []
        self._entries: list[tuple[str, Entries]] = []
        self._nested: list[tuple[str, _Check]] = []

    def __bool__(self) -> bool:
        return any((self._lengths, self._ranges, self._items, self._entries, self._nested))

    def add(self, field: _Descriptor, bound: Bound | None) -> None:
        name = field.name
        match bound:
            case Text(most) | Octets(most):
                if most < MAX_FRAME_BYTES:
                    self._lengths.append((name, most, bound))
            case Range(least, most):
                self._ranges.append((name, least, most, field.has_presence))
            case Items() if bound.most < MAX_FRAME_BYTES:
                nested = _compile(field.message_type) if field.message_type is not None and bound.walked else None
                self._items.append((name, bound, nested))
            case Entries():
                self._entries.append((name, bound))
            case None if field.message_type is not None:
                if (nested := _compile(field.message_type)) is not None:
                    self._nested.append((name, nested))

    def __call__(self, message: _Message) -> None:
        """Raise `_OutOfBounds` at the first value that is out of its bound."""
        for name, most, bound in self._lengths:
            if len(getattr(message, name)) > most:
                raise _OutOfBounds(name, _too_long(getattr(message, name), bound))
        for name, least, most, optional in self._ranges:
            if not least <= getattr(message, name) <= most and (not optional or message.HasField(name)):
                raise _OutOfBounds(name, _out_of_range(getattr(message, name), Range(least, most)))
        for name, items, check in self._items:
            if found := getattr(message, name):
                _check_items(name, found, items, check)
        for name, entries in self._entries:
            _check_entries(name, getattr(message, name), entries)
        for name, inner in self._nested:
            if message.HasField(name):
                _check_message(name, getattr(message, name), inner)


#: The check of each type of message that was seen; None for one without anything to check.
_checks: dict[str, _Check | None] = {}


def check_bounds(message: _Message) -> None:
    """Raise `InvalidArgument` when a value of a message, or of one in it, is out of its bounds.

    The text names the field, what it has and the limit, and shows the beginning of the value. An `AppendRequest` takes
    about half a microsecond.
    """
    descriptor = message.DESCRIPTOR
    try:
        check = _checks[descriptor.full_name]
    except KeyError:
        check = _compile(descriptor)
    if check is not None:
        try:
            check(message)
        except _OutOfBounds as broken:
            raise InvalidArgument(f"{descriptor.name}.{broken.path} {broken.reason}") from None


def check_answer(answer: Answer, peer: str) -> Answer:
    """Return what a peer has answered.

    Raises `InternalError` when a value is out of its bounds: the peer is no server.
    """
    try:
        check_bounds(answer)
    except InvalidArgument as error:
        raise InternalError(f"{peer} sent an invalid message: {error.message}") from None
    return answer


def _compile(descriptor: _Descriptor) -> _Check | None:
    name = descriptor.full_name
    if name not in _checks:
        bounds = ALL_BOUNDS[descriptor.name] if name.startswith(PACKAGE) else {}
        check = _Check()
        for field in descriptor.fields:
            check.add(field, bounds.get(field.name))
        _checks[name] = check or None
    return _checks[name]


def _check_message(name: str, message: _Message, check: _Check) -> None:
    try:
        check(message)
    except _OutOfBounds as broken:
        raise broken.within(name) from None


def _check_items(name: str, items: Any, bound: Items, nested: _Check | None) -> None:
    if len(items) > bound.most:
        raise _OutOfBounds(name, f"has {len(items)} items, the limit is {bound.most}: say it in several requests")
    if bound.each is not None:
        _check_values(name, items, bound.each)
    elif nested is not None:
        _check_messages(name, items, nested)


def _check_values(name: str, items: Any, each: Text | Octets | Range) -> None:
    for number, item in enumerate(items):
        if isinstance(each, Range):
            if not each.least <= item <= each.most:
                raise _OutOfBounds(f"{name}[{number}]", _out_of_range(item, each))
        elif len(item) > each.most:
            raise _OutOfBounds(f"{name}[{number}]", _too_long(item, each))


def _check_messages(name: str, items: Any, nested: _Check) -> None:
    number = 0
    try:
        for item in items:
            nested(item)
            number += 1
    except _OutOfBounds as broken:
        raise broken.within(f"{name}[{number}]") from None


def _check_entries(name: str, entries: Any, bound: Entries) -> None:
    if len(entries) > bound.most:
        raise _OutOfBounds(name, f"has {len(entries)} entries, the limit is {bound.most}")
    for key, value in entries.items():
        if len(value) > bound.each.most:
            raise _OutOfBounds(f"{name}[{key}]", _too_long(value, bound.each))


def _too_long(value: str | bytes, bound: Text | Octets) -> str:
    unit = "characters" if isinstance(bound, Text) else "bytes"
    return f"has {len(value)} {unit}, the limit is {bound.most}: {value[:_SHOWN]!r}..."


def _out_of_range(value: int, bound: Range) -> str:
    return f"is {value}: it is a number from {bound.least} to {bound.most}"
