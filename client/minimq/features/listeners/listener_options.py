"""The options of push consumers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minimq.consuming.consumer_options import SharedChanges, SharedOptions
from minimq.features.work_queues.work_queue_options import invisible_ms
from minimq_common.errors import InvalidArgument
from minimq_common.wire.protocol_bounds import MAX_INVISIBLE_MS

#: From 10 seconds to 2 hours, as in RocketMQ.
RETRY_DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


class PushConsumerChanges(SharedChanges, total=False):
    """Options of a push consumer as keyword arguments; see `PushConsumerOptions`."""

    max_deliveries: int | None
    retry_delays_s: Sequence[float] | None
    consume_timeout_s: float
    invisible_s: float


@dataclass(frozen=True, slots=True)
class PushConsumerOptions(SharedOptions):
    """Options of push consumers, given by name: those of `SharedOptions`, and how listeners are called.

    Attributes:
        max_deliveries: deliveries of a message, the first one included, after which it becomes a dead letter; None for
            16, and for no limit in an orderly consumer. Lower it if failed messages rarely succeed later.
        retry_delays_s: seconds before each retry, up to 43200; the last value applies to all further retries. None for
            10 seconds to 2 hours, and for 1 second in an orderly consumer, whose queue waits meanwhile. Change it to
            match the outages of what the listener calls.
        consume_timeout_s: seconds after which a call of the listener counts as hung. Raise it for long jobs.
        invisible_s: for retries, and for all messages with `mode="work_queue"`: seconds after which the messages of a
            consumer that hangs or is cut off are redelivered, from 1 to 43200; a live consumer extends them. Lower it
            if they must not wait so long; raise it if the process may pause for longer.
    """

    max_deliveries: int | None = None
    retry_delays_s: Sequence[float] | None = None
    consume_timeout_s: float = 900.0
    invisible_s: float = 30.0

    def __post_init__(self) -> None:
        SharedOptions.__post_init__(self)
        if self.max_deliveries is not None and (type(self.max_deliveries) is not int or self.max_deliveries < 1):
            raise InvalidArgument(
                f"max_deliveries is {self.max_deliveries!r}: it must be a whole number from 1 on, or None"
            )
        invisible_ms(self.invisible_s)
        if self.retry_delays_s is not None and not _are_delays(self.retry_delays_s):
            raise InvalidArgument(
                f"retry_delays_s is {self.retry_delays_s!r}: it must be a sequence of numbers above 0, up to "
                f"{MAX_INVISIBLE_MS // 1000}"
            )


def _are_delays(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(type(delay) in (int, float) and 0 < delay <= MAX_INVISIBLE_MS / 1000 for delay in value)
    )
