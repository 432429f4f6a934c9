"""The options of simple consumers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minimq.receiving.consumer_options import check_count
from minimq.transport.start_position import Start, start_position
from minimq_common.errors import InvalidArgument
from minimq_common.protocol_bounds import MAX_INVISIBLE_MS, MIN_INVISIBLE_MS


@dataclass(frozen=True, slots=True)
class SimpleOptions:
    """The arguments that a simple consumer was made with.

    Attributes:
        invisible_s: invisible duration: seconds for which a message that is received is in no other hand.
        max_tries: consumption attempts after which a message is a dead letter.
        start: where a new group begins.
        free_on_close: let others have what is not settled as soon as the consumer closes or dies.
        request_timeout_s: seconds for which a settle is tried, and that a broker may take to answer.
    """

    invisible_s: float = 30.0
    max_tries: int = 16
    start: Start = "earliest"
    free_on_close: bool = True
    request_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        invisible_ms(self.invisible_s)
        check_count("max_tries", self.max_tries)
        start_position(self.start)


def invisible_ms(value: object, name: str = "invisible_s", shortest_ms: int = MIN_INVISIBLE_MS) -> int:
    """Return a duration in ms. Raises `InvalidArgument` unless it is a number of seconds within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidArgument(f"{name} is {value!r}: it must be a number of seconds")
    if not shortest_ms <= value * 1000 <= MAX_INVISIBLE_MS:
        raise InvalidArgument(
            f"{name} is {value!r}: it must be from {shortest_ms / 1000:g} to {MAX_INVISIBLE_MS // 1000} seconds"
        )
    return round(value * 1000)
