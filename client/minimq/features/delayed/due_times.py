"""Due times of delayed messages, and which of them may share a batch."""

from __future__ import annotations

import math
from datetime import datetime
from itertools import count
from typing import Any, Final, NamedTuple

from minimq.features.delayed.recall_handle import RecallHandle
from minimq.sending.hold import Held
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message, MessageQueue
from minimq_common.text_units import kind_of

#: Longest delay: a year, even a leap year.
MAX_DELAY_DAYS: Final = 366
MAX_DELAY_S: Final = MAX_DELAY_DAYS * 86_400
#: A larger number of seconds since 1970 was probably meant as milliseconds.
_MIN_MS = 10_000_000_000

#: Messages that are due within the same span share a batch: short beside any delay, and long enough to fill batches.
PRECISION_S: Final = 0.1

_recallable = count(1)


class DueBucket(NamedTuple):
    """The interval in which a delayed message is due. Only messages of the same bucket share a batch."""

    #: Due after a delay, not at a time of day.
    is_delay: bool
    number: int
    #: Unique for each recallable message, which is sent alone; 0 for all others.
    alone: int


class DueTime(NamedTuple):
    """When a delayed message is due: the `Hold` of its batch."""

    #: Seconds on the monotonic clock of this process for a delay; otherwise seconds since 1970.
    at_s: float
    bucket: DueBucket

    def merged(self, other: DueTime) -> DueTime:
        """Return the later one, so that no message of a batch is delivered early."""
        return max(self, other)

    def write(self, request: Any, now: float) -> None:
        """Set it in an `Append`. A delay is sent as the time left, so clocks need not agree."""
        request.delay.recallable = self.bucket.alone > 0
        if self.bucket.is_delay:
            request.delay.delay_ms = max(math.ceil((self.at_s - now) * 1000), 0)
        else:
            request.delay.due_ms = math.ceil(self.at_s * 1000)

    def held(self, queue: MessageQueue, result: Any) -> Held | None:
        """See `Hold.held`."""
        due_ms = result.held_until_ms
        if not self.bucket.alone:
            return Held(due_ms) if due_ms else None
        return Held(due_ms, str(RecallHandle(queue.topic, queue.broker_name, due_ms, result.held_id)))


def due_time(message: Message, monotonic_s: float, time_s: float) -> DueTime | None:
    """Return when a message is due; None if it is delivered at once."""
    after, at = message.deliver_after_s, message.deliver_at
    if after is None and at is None:
        if message.recallable:
            raise InvalidArgument(
                "a message without a due time cannot be recalled: give deliver_after_s or deliver_at, or leave out "
                "recallable"
            )
        return None
    if after is not None and at is not None:
        raise InvalidArgument("the message has deliver_after_s and deliver_at: give one of them")
    if message.message_group is not None:
        raise InvalidArgument(
            "a message of a FIFO topic cannot be delayed, as it would be consumed out of its order: leave out "
            "deliver_after_s and deliver_at, or send it to another topic without a message group"
        )
    due_s = monotonic_s + _delay_s(after) if after is not None else _moment_s(at, time_s)
    if not (after or at or message.recallable):
        return None
    alone = next(_recallable) if message.recallable else 0
    return DueTime(due_s, DueBucket(after is not None, int(due_s / PRECISION_S), alone))


def _delay_s(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise InvalidArgument(f"deliver_after_s is {kind_of(given)}: give a number of seconds")
    if not 0 <= given <= MAX_DELAY_S:  # also true for NaN
        raise InvalidArgument(
            f"deliver_after_s is {given}: it must be 0 to {MAX_DELAY_S}, which is {MAX_DELAY_DAYS} days"
        )
    return given


def _moment_s(given: object, time_s: float) -> float:
    if isinstance(given, datetime):
        if given.utcoffset() is None:
            raise InvalidArgument(
                f"deliver_at is {given!r}, which has no time zone: datetime.now(UTC) + timedelta(hours=1), for "
                "example, has one"
            )
        seconds = given.timestamp()
    elif isinstance(given, bool) or not isinstance(given, int | float):
        raise InvalidArgument(
            f"deliver_at is {kind_of(given)}: give a datetime with a time zone, or seconds since 1970"
        )
    else:
        seconds = given
    if not 0 <= seconds < math.inf:  # also true for NaN
        raise InvalidArgument(f"deliver_at is {given}: seconds since 1970 are 0 or more")
    if seconds > time_s + MAX_DELAY_S:
        remedy = "give seconds, not milliseconds, since 1970" if seconds >= _MIN_MS else "send it again by then"
        raise InvalidArgument(f"deliver_at is {given}, which is more than {MAX_DELAY_DAYS} days ahead: {remedy}")
    return seconds
