"""The options of work queues."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minimq.arguments import check_between, check_count
from minimq.consuming.start_position import Start, start_position
from minimq.options import check_above_zero
from minimq_common.errors import InvalidArgument
from minimq_common.security.credentials import CredentialsArgument
from minimq_common.wire.protocol_bounds import MAX_INVISIBLE_MS, MAX_TAKEN, MIN_INVISIBLE_MS

#: Default number of deliveries of a message after which it becomes a dead letter.
MAX_DELIVERIES = 16
#: Enough to make the cost of requests negligible, and few enough to leave messages for other consumers.
PREFETCH_MESSAGES = 4096


@dataclass(frozen=True, slots=True)
class WorkQueueOptions:
    """The checked arguments of a `WorkQueueConsumer`."""

    invisible_s: float = 30.0
    max_deliveries: int = 16
    start: Start = "earliest"
    release_on_close: bool = True
    request_timeout_s: float = 10.0
    prefetch_messages: int = PREFETCH_MESSAGES
    credentials: CredentialsArgument | None = None

    def __post_init__(self) -> None:
        invisible_ms(self.invisible_s)
        check_count("max_deliveries", self.max_deliveries)
        check_between("prefetch_messages", self.prefetch_messages, 0, MAX_TAKEN)
        check_above_zero(self, but=("prefetch_messages",))
        start_position(self.start)


def invisible_ms(value: object, name: str = "invisible_s", shortest_ms: int = MIN_INVISIBLE_MS) -> int:
    """Convert seconds to ms. Raises `InvalidArgument` unless the value is a number within the limits of brokers."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidArgument(f"{name} is {value!r}: it must be a number of seconds")
    if not shortest_ms <= value * 1000 <= MAX_INVISIBLE_MS:
        raise InvalidArgument(
            f"{name} is {value!r}: it must be from {shortest_ms / 1000:g} to {MAX_INVISIBLE_MS // 1000} seconds"
        )
    return round(value * 1000)
