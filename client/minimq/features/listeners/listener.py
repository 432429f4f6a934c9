"""Listeners and their results."""

from __future__ import annotations

import asyncio
import inspect
import logging
import reprlib
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from numbers import Integral
from typing import Any, NamedTuple

from minimq.arguments import is_async
from minimq.consuming.interceptor import ConsumerCall, ReceiveInterceptors
from minimq.consuming.received import ReceivedMessage
from minimq.features.requests.replier import Replier
from minimq.features.requests.reply import Reply
from minimq.features.work_queues.copies import origin_of
from minimq_common.errors import InvalidArgument, MalformedBody, MinimqError
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)

#: Maximum number of messages in a log line, and of keys of each.
_NAMED = 5
#: Maximum length of the name of an error in the reason of a dead letter.
_SHOWN_NAME = 100
_short = reprlib.Repr()
_short.maxlist, _short.maxstring = _NAMED, 80


class ConsumeResult(Enum):
    """The result of a listener: all messages succeeded, or all are to be retried."""

    SUCCESS = "success"
    RETRY_LATER = "retry-later"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLater:
    """A result that selects the messages of the call to retry, and their delay.

    Attributes:
        level: index of the delay in `retry_delays_s`; with None, the delivery count so far selects it. In an orderly
            consumer the delay is always that of `retry_delays_s`.
        indexes: of the messages to retry; all others have succeeded. None retries all. An orderly consumer retries all
            messages from the lowest index on, since nothing may overtake it.

    Raises:
        InvalidArgument: a number is negative or not whole.
    """

    level: int | None = None
    indexes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.indexes is not None:
            if not isinstance(self.indexes, Iterable):
                raise InvalidArgument(f"{self!r}: indexes must be a sequence of whole numbers from 0 on")
            object.__setattr__(self, "indexes", tuple(self.indexes))  # a copy, since the caller may change the list
        for number in (*(self.indexes or ()), 0 if self.level is None else self.level):
            if not isinstance(number, Integral) or isinstance(number, bool) or number < 0:
                raise InvalidArgument(f"{self!r}: {number!r} is not a whole number from 0 on")


#: The result of a listener: for all messages of the call, or a list with a result for each of them.
ListenerAnswer = ConsumeResult | RetryLater | Reply | Sequence[ConsumeResult | Reply]

#: Called with messages of one queue and one topic, in order.
Listener = Callable[[list[ReceivedMessage]], ListenerAnswer]
AsyncListener = Callable[[list[ReceivedMessage]], Awaitable[ListenerAnswer]]


class ListenerResult(NamedTuple):
    #: Indexes of the messages to retry, sorted; all others have succeeded.
    again: Sequence[int]
    #: Index of their delay; None if the delivery count decides.
    level: int | None = None
    #: Reason of the failure, for dead letters.
    reason: str = "listener answered RETRY_LATER"
    error: BaseException | None = None
    #: Retries cannot help: the messages become dead letters at once.
    is_final: bool = False

    def tell(self, call: ConsumerCall | None) -> None:
        """Record the outcome in the call of interceptors, if there are any."""
        if call is None:
            return
        call.failed, call.error = self.again, self.error
        if self.again:
            call.reason = self.reason


class ListenerCalls(NamedTuple):
    """The concurrency, batch size and order of calls of a listener."""

    threads: int
    batch_size: int
    #: One call at a time for each queue, in order.
    in_order: bool


def _mistake_in_list(results: Sequence[object], messages: int) -> str:
    if len(results) != messages:
        return f"the call had {messages} messages, and the list has {len(results)} results: return one for each"
    if all(isinstance(each, Reply | ConsumeResult) for each in results):
        return ""
    return "each result of a list must be a Reply, ConsumeResult.SUCCESS or ConsumeResult.RETRY_LATER"


def verdict(answer: object, messages: int, *, in_order: bool = False) -> tuple[ListenerResult, str]:
    """Return the verdict of a result for a number of messages, and its mistake, if any; then all are retried."""
    again: Sequence[int] = ()
    mistake, level = "", None
    match answer:
        case ConsumeResult():
            again = range(messages) if answer is ConsumeResult.RETRY_LATER else ()
        case Reply():
            if messages > 1:
                mistake = f"the call had {messages} messages: return a list with a reply for each, or use batch_size=1"
        case list() | tuple():
            again = [index for index, each in enumerate(answer) if each is ConsumeResult.RETRY_LATER]
            mistake = _mistake_in_list(answer, messages)
        case RetryLater():
            again = range(messages) if answer.indexes is None else sorted(set(answer.indexes))
            level = answer.level
            if again and again[-1] >= messages:
                mistake = f"the indexes of the {messages} messages of the call end at {messages - 1}"
        case _:
            mistake = "it must return ConsumeResult.SUCCESS, ConsumeResult.RETRY_LATER, RetryLater(...) or Reply(...)"
    if mistake:
        return _invalid(messages), mistake
    return ListenerResult(range(again[0], messages) if in_order and again else again, level), ""


def _invalid(messages: int) -> ListenerResult:
    return ListenerResult(range(messages), reason="listener gave no valid answer")


def described(messages: Sequence[ReceivedMessage]) -> str:
    """Describe messages for the log: the first few, each with offset, id and keys."""
    texts = []
    for message in messages[:_NAMED]:
        queue, offset = origin_of(message)
        place = f"offset {offset}" if queue == str(message.queue) else f"offset {offset} of {queue}"
        keys = f" keys {_short.repr(list(message.keys))}" if message.keys else ""
        texts.append(f"{place} id {message.message_id}{keys}")
    more = f", and {len(messages) - _NAMED} more" if len(messages) > _NAMED else ""
    return f"[{'; '.join(texts)}]{more}"


class ListenerAdapter:
    """Calls a listener so that every call ends with a verdict. Thread-safe if the listener is."""

    def __init__(
        self,
        listener: Listener | AsyncListener,
        group: str,
        replier: Replier,
        interceptors: ReceiveInterceptors,
        *,
        in_order: bool,
        awaited: bool = False,
    ) -> None:
        given: object = listener
        if not callable(given) or is_async(given) is not awaited:
            wanted = (
                "a coroutine function; minimq.PushConsumer takes plain ones"
                if awaited
                else "a plain function; minimq.aio.PushConsumer takes coroutine functions"
            )
            raise InvalidArgument(f"the listener is {listener!r}: it must be {wanted}")
        self._listener: Callable[[list[ReceivedMessage]], Any] = given
        self._interceptors = interceptors
        self._group = group
        self._replier = replier
        self._in_order = in_order
        #: The kinds of invalid results that were logged.
        self._logged: set[type] = set()

    def ask(self, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> ListenerResult:
        with self._around(messages) as call:
            try:
                found = self._verdict(self._listener(list(messages)), messages)
            except BaseException as error:  # noqa: BLE001 - any error of the listener counts as RETRY_LATER
                found = self.failed(error, queue, messages)
            found.tell(call)
        return found

    async def ask_async(self, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> ListenerResult:
        """Await the listener. Raises only errors that end the task or the program."""
        with self._around(messages) as call:
            try:
                found = self._verdict(await self._listener(list(messages)), messages)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                found = self.failed(error, queue, messages)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - any other error of the listener counts as RETRY_LATER
                found = self.failed(error, queue, messages)
            found.tell(call)
        return found

    def _around(self, messages: Sequence[ReceivedMessage]) -> AbstractContextManager[ConsumerCall | None]:
        return self._interceptors.process(messages) if self._interceptors else nullcontext()

    def failed(self, error: BaseException, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> ListenerResult:
        """Log an error of the listener; return its verdict."""
        log.error(
            "consumer: the listener failed group=%s topic=%s queue=%s call=%d messages=%s",
            self._group,
            messages[0].topic,
            queue,
            messages[0].delivery_count,
            described(messages),
            exc_info=error,
        )
        return ListenerResult(
            range(len(messages)),
            reason=f"listener raised {type(error).__name__[:_SHOWN_NAME]}",
            # Of several messages, the malformed one is unknown: each is redelivered alone.
            is_final=isinstance(error, MalformedBody) and len(messages) == 1,
            error=error,
        )

    def _verdict(self, answer: object, messages: Sequence[ReceivedMessage]) -> ListenerResult:
        if answer is ConsumeResult.SUCCESS:
            return ListenerResult(())
        found, mistake = verdict(answer, len(messages), in_order=self._in_order)
        if not mistake and isinstance(answer, Reply | list | tuple):
            replies = (answer,) if isinstance(answer, Reply) else answer
            try:
                self._reply(messages, replies, set(found.again))
            except MinimqError as error:
                mistake, found = error.message, _invalid(len(messages))
        if mistake:
            self._log_mistake(answer, mistake)
        return found

    def _reply(self, messages: Sequence[ReceivedMessage], replies: Sequence[object], again: Container[int]) -> None:
        prepared = [
            self._replier.prepare(message, reply)
            for index, (message, reply) in enumerate(zip(messages, replies, strict=True))
            if isinstance(reply, Reply) and index not in again
        ]
        for made in prepared:
            if made is not None:
                self._replier.send(made)

    def _log_mistake(self, answer: object, mistake: str) -> None:
        if inspect.iscoroutine(answer):
            answer.close()
        if type(answer) not in self._logged:
            self._logged.add(type(answer))
            log.error(
                "consumer: the listener has answered %r, which counts as RETRY_LATER: %s group=%s",
                answer,
                mistake,
                self._group,
            )
