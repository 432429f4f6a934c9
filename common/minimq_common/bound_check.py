"""Checks a message of the protocol against the table of bounds, in one walk. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from minimq_common.bound_kinds import Bound, Entries, Items, Octets, Range, Text
from minimq_common.errors import InternalError, InvalidArgument
from minimq_common.protocol_bounds import MAX_FRAME_BYTES, PACKAGE
from minimq_common.server_bounds import ALL_BOUNDS

Answer = TypeVar("Answer")

#: Characters of a value that an error shows.
_SHOWN = 40

#: A message of protobuf, or its descriptor: this module knows them by their attributes alone.
_Message = Any
_Descriptor = Any

#: Checks one message. Raises `_OutOfBounds`.
_Check = Callable[[_Message], None]


class _OutOfBounds(Exception):
    """A value is out of its bound; says where, from the innermost message outwards, and why."""

    def __init__(self, field: str, reason: str) -> None:
        self.path = field
        self.reason = reason

    def within(self, field: str) -> _OutOfBounds:
        self.path = f"{field}.{self.path}"
        return self


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
        steps = [step for field in descriptor.fields if (step := _step(field, bounds.get(field.name))) is not None]
        _checks[name] = _run(tuple(steps)) if steps else None
    return _checks[name]


def _run(steps: tuple[_Check, ...]) -> _Check:
    if len(steps) == 1:
        return steps[0]

    def check(message: _Message) -> None:
        for step in steps:
            step(message)

    return check


def _step(field: _Descriptor, bound: Bound | None) -> _Check | None:
    match bound:
        case Text(most) | Octets(most):
            return _length(field.name, most, bound) if most < MAX_FRAME_BYTES else None
        case Range():
            return _range(field.name, bound, optional=field.has_presence)
        case Items() if bound.most < MAX_FRAME_BYTES:
            nested = _compile(field.message_type) if field.message_type is not None and bound.walked else None
            return _items(field.name, bound, nested)
        case Entries():
            return _entries(field.name, bound)
        case None if field.message_type is not None:
            return _nested(field.name, _compile(field.message_type))
    return None


def _length(name: str, most: int, bound: Text | Octets) -> _Check:
    def check(message: _Message) -> None:
        if len(getattr(message, name)) > most:
            raise _OutOfBounds(name, _too_long(getattr(message, name), bound))

    return check


def _range(name: str, bound: Range, *, optional: bool) -> _Check:
    least, most = bound

    def check(message: _Message) -> None:
        if not least <= getattr(message, name) <= most and (not optional or message.HasField(name)):
            raise _OutOfBounds(name, _out_of_range(getattr(message, name), bound))

    return check


def _items(name: str, bound: Items, nested: _Check | None) -> _Check:
    most, each = bound.most, bound.each

    def check(message: _Message) -> None:
        items = getattr(message, name)
        if not items:
            return
        if len(items) > most:
            raise _OutOfBounds(name, f"has {len(items)} items, the limit is {most}: say it in several requests")
        if each is not None:
            _check_values(name, items, each)
        elif nested is not None:
            _check_messages(name, items, nested)

    return check


def _check_values(name: str, items: Any, each: Text | Octets | Range) -> None:  # noqa: ANN401 - a list of protobuf
    for number, item in enumerate(items):
        if isinstance(each, Range):
            if not each.least <= item <= each.most:
                raise _OutOfBounds(f"{name}[{number}]", _out_of_range(item, each))
        elif len(item) > each.most:
            raise _OutOfBounds(f"{name}[{number}]", _too_long(item, each))


def _check_messages(name: str, items: Any, nested: _Check) -> None:  # noqa: ANN401 - a list of protobuf
    number = 0
    try:
        for item in items:
            nested(item)
            number += 1
    except _OutOfBounds as broken:
        raise broken.within(f"{name}[{number}]") from None


def _entries(name: str, bound: Entries) -> _Check:
    def check(message: _Message) -> None:
        entries = getattr(message, name)
        if len(entries) > bound.most:
            raise _OutOfBounds(name, f"has {len(entries)} entries, the limit is {bound.most}")
        for key, value in entries.items():
            if len(value) > bound.each.most:
                raise _OutOfBounds(f"{name}[{key}]", _too_long(value, bound.each))

    return check


def _nested(name: str, inner: _Check | None) -> _Check | None:
    if inner is None:
        return None

    def check(message: _Message) -> None:
        if message.HasField(name):
            try:
                inner(getattr(message, name))
            except _OutOfBounds as broken:
                raise broken.within(name) from None

    return check


def _too_long(value: str | bytes, bound: Text | Octets) -> str:
    unit = "characters" if isinstance(bound, Text) else "bytes"
    return f"has {len(value)} {unit}, the limit is {bound.most}: {value[:_SHOWN]!r}..."


def _out_of_range(value: int, bound: Range) -> str:
    return f"is {value}: it is a number from {bound.least} to {bound.most}"
