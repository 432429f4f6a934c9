"""What a listener is, and what it may answer."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from minimq.receiving.received import ReceivedMessage
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)


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


def is_async(function: object) -> bool:
    """Tell whether a call of this is to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def verdict(answer: object, messages: int) -> Verdict:
    """Return what an answer means for a call with so many messages. Whatever is no answer is no success."""
    if answer is ConsumeResult.SUCCESS:
        return Verdict(messages)
    if isinstance(answer, RetryLater):
        return Verdict(min(answer.first, messages), answer.level)
    return Verdict(0)


class AskedListener:
    """A listener as the consumer calls it: whatever it does, there is a verdict. Thread-safe if the listener is.

    Args:
        listener: the user's.
        group: the consumer group, for the log.

    Raises:
        InvalidArgument: it is no plain function.
    """

    def __init__(self, listener: Listener, group: str) -> None:
        given: object = listener
        if not callable(given) or is_async(given):
            raise InvalidArgument(
                f"the listener is {listener!r}: it must be a plain function; minimq.aio.PushConsumer takes coroutine "
                "functions"
            )
        self._listener = listener
        self._group = group
        #: The kinds of wrong answers that were told of.
        self._told: set[type] = set()

    def ask(self, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> Verdict:
        """Give messages to the listener."""
        try:
            answer: object = self._listener(list(messages))
        except BaseException:  # whatever the listener raises, even to end its thread, is the user's and means "later"
            log.exception("consumer: the listener failed, will try again group=%s queue=%s", self._group, queue)
            return Verdict(0)
        if not isinstance(answer, ConsumeResult | RetryLater):
            self._tell_of(answer)
        return verdict(answer, len(messages))

    def _tell_of(self, answer: object) -> None:
        """Tell of an answer that is none, once for each kind: to the user it looks like messages that fail."""
        if inspect.iscoroutine(answer):
            answer.close()
        if type(answer) not in self._told:
            self._told.add(type(answer))
            log.error(
                "consumer: the listener has answered %r, which counts as RETRY_LATER: it must return "
                "ConsumeResult.SUCCESS, ConsumeResult.RETRY_LATER or RetryLater(...) group=%s",
                answer,
                self._group,
            )
