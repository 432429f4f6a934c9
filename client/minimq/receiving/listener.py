"""What a listener is, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from minimq.receiving.received import ReceivedMessage
from minimq_common.errors import InvalidArgument


class ConsumeResult(Enum):
    """What a listener says of the messages it was given: all of them succeeded, or all shall be tried again."""

    SUCCESS = "success"
    RETRY_LATER = "retry-later"


@dataclass(frozen=True, slots=True)
class RetryLater:
    """What a listener may say instead: where the messages that are to be tried again begin, and how long they wait.

    Attributes:
        first: index of the first one among the messages of the call; those before it have succeeded.
        level: index of the wait among `retry_delays_s`; by the number of tries so far when it is None. In an orderly
            consumer the wait is always `suspend_s`.

    Raises:
        InvalidArgument: a number is negative, or not whole.
    """

    first: int = 0
    level: int | None = None

    def __post_init__(self) -> None:
        for number in (self.first, 0 if self.level is None else self.level):
            if type(number) is not int or number < 0:
                raise InvalidArgument(f"{self!r}: {number!r} is not a whole number from 0 on")


#: Gets messages of one queue and one topic, in their order.
Listener = Callable[[list[ReceivedMessage]], ConsumeResult | RetryLater]


class Verdict(NamedTuple):
    """An answer as the consumer acts on it.

    Attributes:
        succeeded: how many messages did, from the first on.
        level: of the wait of the others, None when the number of tries decides.
    """

    succeeded: int
    level: int | None = None


def verdict(answer: object, messages: int) -> Verdict:
    """Return what an answer means for a call with so many messages. Whatever is no answer is no success."""
    if answer is ConsumeResult.SUCCESS:
        return Verdict(messages)
    if isinstance(answer, RetryLater):
        return Verdict(min(answer.first, messages), answer.level)
    return Verdict(0)
