"""The retention rules of a topic as users give them."""

from __future__ import annotations

from minimq_common.errors import InvalidArgument
from minimq_common.protocol_bounds import MAX_NUMBER, MAX_RETENTION_MS
from minimq_common.words import kind_of


def retention_to_wire(seconds: float) -> int:
    """Return a time in ms. Raises `InvalidArgument` unless it is 0, or one that a topic can have."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgument(f"retention_s is {kind_of(seconds)}: give a number of seconds")
    if seconds != 0 and not 0.001 <= seconds <= MAX_RETENTION_MS / 1000:
        raise InvalidArgument(f"retention_s is {seconds}: give up to {MAX_RETENTION_MS // 1000} (100 years), or 0")
    return round(seconds * 1000)


def check_retention_bytes(size: int) -> int:
    """Return a size. Raises `InvalidArgument` unless it is a whole number from 0 on."""
    if type(size) is not int or not 0 <= size <= MAX_NUMBER:
        raise InvalidArgument(f"retention_bytes is {size!r}: it must be a whole number from 0 on, below 2^63")
    return size
