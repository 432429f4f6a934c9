"""Interceptors of consumers, which wrap each call that gives messages to your code or settles them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from minimq.arguments import check_iterable
from minimq.consuming.received import ReceivedMessage
from minimq_common.errors import InvalidArgument

log = logging.getLogger(__name__)

T = TypeVar("T")

#: What a call does with messages; the last four settle those of a work queue.
Operation = Literal["receive", "process", "ack", "release", "extend", "reject"]


@dataclass(slots=True, eq=False, weakref_slot=True)
class ConsumerCall:
    """A call that gives messages to your code, or settles them. Its outcome is set when it ends.

    Attributes:
        operation: what the call does.
        group: the consumer group; empty if the consumer has none.
        client_id: unique name of the consumer in its group.
        messages: the messages; in "receive" and "process" of one queue, and in "receive" set when the call ends.
            Without those that are settled by their handles.
        count: number of messages, including those that are settled by their handles.
        failed: in "process", the indexes of messages to retry.
        reason: why they are retried; empty otherwise.
        error: the exception of the listener or the call.
    """

    operation: Operation
    group: str
    client_id: str
    messages: Sequence[ReceivedMessage] = ()
    count: int = 0
    failed: Sequence[int] = ()
    reason: str = ""
    error: BaseException | None = None

    def found(self, messages: Sequence[ReceivedMessage]) -> None:
        """Set the messages of a "receive"."""
        self.messages, self.count = messages, len(messages)


class ReceiveInterceptor:
    """The base class of interceptors of consumers; its context managers do nothing.

    Override a method by a generator with `contextlib.contextmanager`, see docs/consuming.md. The code after its one
    `yield` always runs: errors are in `call.error`, and are never raised into it. It runs on the thread, or in the
    task, of the call that it wraps: context variables set before the `yield` hold in the listener. Several calls may
    run at once, so an interceptor must be thread-safe, and quick. Exceptions of an interceptor are logged and otherwise
    ignored.
    """

    def receive(self, call: ConsumerCall) -> AbstractContextManager[object]:
        """Wrap a `poll` or `receive`, and each poll of a `for` loop."""
        return _NOTHING

    def process(self, call: ConsumerCall) -> AbstractContextManager[object]:
        """Wrap a call of the listener."""
        return _NOTHING

    def settle(self, call: ConsumerCall) -> AbstractContextManager[object]:
        """Wrap a call of a `WorkQueueConsumer` that settles messages; `ack_async` ends when its future is done."""
        return _NOTHING


_NOTHING: AbstractContextManager[object] = nullcontext()


#: See `intercept_all`.
_of_all: list[ReceiveInterceptor] = []


def intercept_all(interceptor: ReceiveInterceptor) -> Callable[[], None]:
    """Add an interceptor, after their own, to all consumers created from now on; return a function that ends that."""
    if not isinstance(interceptor, ReceiveInterceptor):
        raise InvalidArgument(f"interceptor {interceptor!r} is not an instance of ReceiveInterceptor")
    _of_all.append(interceptor)
    return partial(_of_all.remove, interceptor)


class ReceiveInterceptors:
    """The interceptors of one consumer, then those of all consumers; false if there are none."""

    __slots__ = ("_client_id", "_group", "_interceptors")

    def __init__(self, interceptors: Iterable[ReceiveInterceptor], group: str, client_id: str) -> None:
        self._interceptors = (*check_iterable("interceptors", interceptors, "interceptors"), *_of_all)
        self._group, self._client_id = group, client_id
        for interceptor in self._interceptors:
            if not isinstance(interceptor, ReceiveInterceptor):
                raise InvalidArgument(f"interceptor {interceptor!r} is not an instance of ReceiveInterceptor")

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def receive(self) -> AbstractContextManager[ConsumerCall]:
        """Wrap a call that returns messages; the caller sets them with `ConsumerCall.found`."""
        return self._around("receive", ConsumerCall("receive", self._group, self._client_id))

    def process(self, messages: Sequence[ReceivedMessage]) -> AbstractContextManager[ConsumerCall]:
        """Wrap a call of the listener; the caller sets its outcome."""
        return self._around("process", ConsumerCall("process", self._group, self._client_id, messages, len(messages)))

    def settle(self, operation: Operation, given: Sequence[object]) -> AbstractContextManager[ConsumerCall]:
        """Wrap a call that settles messages or handles."""
        known = [each for each in given if isinstance(each, ReceivedMessage)]
        return self._around("settle", ConsumerCall(operation, self._group, self._client_id, known, len(given)))

    def settle_later(
        self, operation: Operation, given: list[T], settle: Callable[[list[T]], Future[None]]
    ) -> Future[None]:
        """Wrap a call that settles messages without waiting; it ends when its future is done."""
        block = self.settle(operation, given)
        call = block.__enter__()
        try:
            future = settle(given)
        except BaseException as error:
            call.error = error
            block.__exit__(None, None, None)
            raise

        def over(ended: Future[None]) -> None:
            call.error = CancelledError() if ended.cancelled() else ended.exception()
            block.__exit__(None, None, None)

        future.add_done_callback(over)
        return future

    @contextmanager
    def _around(self, method: Literal["receive", "process", "settle"], call: ConsumerCall) -> Iterator[ConsumerCall]:
        entered: list[AbstractContextManager[object]] = []
        try:
            for interceptor in self._interceptors:
                try:
                    block: AbstractContextManager[object] = getattr(interceptor, method)(call)
                    block.__enter__()
                    entered.append(block)
                except Exception:
                    log.exception("consumer: an interceptor failed before operation=%s", call.operation)
            yield call
        except BaseException as error:
            call.error = error
            raise
        finally:
            for block in reversed(entered):
                try:
                    block.__exit__(None, None, None)
                except Exception:
                    log.exception("consumer: an interceptor failed after operation=%s", call.operation)
