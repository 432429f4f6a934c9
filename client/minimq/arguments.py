"""Checks of arguments. Every error names the argument, what was given and what is allowed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TypeVar

from minimq_common.errors import InvalidArgument
from minimq_common.model import Message, MessageQueue, Permission, QueueData
from minimq_common.text_units import kind_of

T = TypeVar("T")

#: The longest wait that Python's locks accept: 292 years.
_MAX_S = (1 << 63) // 10**9


def check_message_type(message: object) -> None:
    """Raise `InvalidArgument` unless it is a `Message`."""
    if not isinstance(message, Message):
        raise InvalidArgument(f"the message is {kind_of(message)}: give a minimq.Message")


def check_iterable(name: str, values: Iterable[T], of: str) -> Iterable[T]:
    """Return `values`. Raises `InvalidArgument` if they are not iterable, such as a single value."""
    if not isinstance(values, Iterable):
        raise InvalidArgument(f"{name} is {kind_of(values)}: give an iterable of {of}")
    return values


def queue_list(name: str, queues: Iterable[MessageQueue | QueueData]) -> list[MessageQueue]:
    """Return queues as a list; a `QueueData` stands for its readable queues. Raises `InvalidArgument`."""
    found: list[MessageQueue] = []
    for each in check_iterable(name, queues, "MessageQueue"):
        found += each.readable() if isinstance(each, QueueData) else [each]
    for queue in found:
        check_queue(name, queue)
    return found


def queue_offsets(offsets: Mapping[MessageQueue, int]) -> Mapping[MessageQueue, int]:
    """Return `offsets`. Raises `InvalidArgument` unless each is a whole number from 0 to 2^63 - 1."""
    if not isinstance(offsets, Mapping):
        raise InvalidArgument(f"offsets is {kind_of(offsets)}: give a mapping of MessageQueue to offset")
    for queue, offset in offsets.items():
        check_queue("offsets", queue)
        if type(offset) is not int or not 0 <= offset < 1 << 63:
            raise InvalidArgument(
                f"the offset of queue {queue} is {offset!r}: it must be a whole number from 0 on, below 2^63"
            )
    return offsets


def check_queue(name: str, queue: object) -> None:
    """Raise `InvalidArgument` unless it is a `MessageQueue`."""
    if not isinstance(queue, MessageQueue):
        raise InvalidArgument(f"{name} has {kind_of(queue)}: give a MessageQueue")


def check_function(name: str, value: object) -> None:
    """Raise `InvalidArgument` unless it can be called."""
    if not callable(value):
        raise InvalidArgument(f"{name} is {value!r}: it must be a function")


def is_async(function: object) -> bool:
    """Return whether the result of a call has to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def check_plain_function(name: str, value: object) -> None:
    """Raise `InvalidArgument` unless it can be called and is no coroutine function."""
    check_function(name, value)
    if is_async(value):
        raise InvalidArgument(
            f"{name} is a coroutine function, which would not be awaited: it must be a plain function"
        )


def waiting_s(value: object, name: str = "timeout") -> float:
    """Return a timeout in seconds; a negative one counts as 0. Raises `InvalidArgument`."""
    if isinstance(value, bool) or not (isinstance(value, int | float) and value <= _MAX_S):
        raise InvalidArgument(f"{name} is {value!r}: it must be a number of seconds, up to {_MAX_S}")
    return max(value, 0)


def check_switch(name: str, value: object) -> None:
    """Raise `InvalidArgument` unless it is `True` or `False`."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} is {value!r}: it must be True or False")


def check_count(name: str, value: object) -> None:
    """Raise `InvalidArgument` unless it is a whole number from 1 on."""
    if type(value) is not int or value < 1:
        raise InvalidArgument(f"{name} is {value!r}: it must be a whole number from 1 on")


def check_between(name: str, value: object, least: int, most: int) -> None:
    """Raise `InvalidArgument` unless it is a whole number from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{name} is {value!r}: it must be a whole number from {least} to {most}")


def check_permission(permission: object) -> None:
    """Raise `InvalidArgument` unless it is a `Permission`."""
    if not isinstance(permission, Permission):
        raise InvalidArgument(f"permission is {permission!r}: give a Permission, such as Permission.READ")


def check_text(name: str, value: object) -> str:
    """Return the value. Raises `InvalidArgument` unless it is text that UTF-8 can encode."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {value!r}: it must be text")
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        raise InvalidArgument(f"{name} is {value!r}: it must be text that UTF-8 can hold") from None
    return value
