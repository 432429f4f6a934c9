"""Numbers of queues, as users give them."""

from __future__ import annotations

from typing import SupportsIndex

from minimq_common.errors import InvalidArgument
from minimq_common.model import MAX_QUEUES
from minimq_common.words import kind_of

_INT32 = range(-(1 << 31), 1 << 31)


def check_queue_counts(**counts: object) -> None:
    """Raise `InvalidArgument` when a count is no number that a request can hold; brokers know the other rules."""
    for name, count in counts.items():
        if count is None:
            continue
        if not isinstance(count, SupportsIndex) or isinstance(count, bool):
            raise InvalidArgument(f"{name} is {kind_of(count)}: give a whole number, 1 to {MAX_QUEUES}")
        if count.__index__() not in _INT32:
            raise InvalidArgument(f"{name} is out of bounds: give a whole number, 1 to {MAX_QUEUES}")
