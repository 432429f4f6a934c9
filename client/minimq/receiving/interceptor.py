"""Interceptors of consumers, which stand around each call that gives messages to your code or settles them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from minimq.arguments import check_iterable
from minimq.receiving.received import ReceivedMessage
from minimq.transport.client_log import client_logger
from minimq_common.errors import InvalidArgument

log = client_logger(__name__)

T = TypeVar("T")

#: What is done with messages; the last four settle those of a work queue.
Operation = Literal["receive", "process", "ack", "release", "extend", "reject"]


@dataclass(slots=True, eq=False, weakref_slot=True)
class ConsumerCall:
    """A call that gives messages to your code, or settles them. Its outcome is known once it is over.

    Attributes:
        operation: what it does.
        group: the consumer group; empty if the consumer has none.
        client_id: name of the consumer among all clients.
        messages: the messages, of one queue in "receive" and "process"; "receive" knows them when it is over. Empty for
            those that are settled by their handles alone.
        count: number of messages, also of those that are settled by their handles.
        failed: of "process": indexes of the messages that are retried.
        reason: why these are retried; empty otherwise.
        error: what the listener or the call has raised.
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
        """Note the messages of a "receive"."""
        self.messages, self.count = messages, len(messages)


class ReceiveInterceptor:
    """The base class of interceptors of consumers; its context managers do nothing.

    Override a method by a generator with `contextlib.contextmanager`, see docs/consuming.md. What follows its one
    `yield` is always run: it sees errors in `call.error`, and never as exceptions. Each is run by
    the thread, or in the task, of what it stands around: context variables that are set before the `yield` hold in
    the listener. Several calls may run at once: an interceptor must be thread-safe and quick. An exception of an
    interceptor is logged, and changes nothing else.
    """

    def receive(self, call: ConsumerCall) -> AbstractContextManager[object]:
        """Stand around a `poll` or `receive`, and each look of a loop for further messages."""
        return _NOTHING

    def process(self, call: ConsumerCall) -> AbstractContextManager[object]:
        """Stand around a call of the listener."""
        return _NOTHING

    def settle(self, call: ConsumerCall) -> AbstractContextManager[object]:
        """Stand around a call of a `SimpleConsumer` that settles messages; that of `ack_async` lasts until its end."""
        return _NOTHING


_NOTHING: AbstractContextManager[object] = nullcontext()


#: See `intercept_all`.
_of_all: list[ReceiveInterceptor] = []


def intercept_all(interceptor: ReceiveInterceptor) -> Callable[[], None]:
    """Add an interceptor to all consumers that are made from now on, behind their own; return what ends that."""
    if not isinstance(interceptor, ReceiveInterceptor):
        raise InvalidArgument(f"interceptor {interceptor!r} is not an instance of ReceiveInterceptor")
    _of_all.append(interceptor)
    return partial(_of_all.remove, interceptor)


class ReceiveInterceptors:
    """The interceptors of one consumer, in their order, and those of all consumers. False if there are none."""

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
        """Return what stands around a call that returns messages, which are to be noted in it."""
        return self._around("receive", ConsumerCall("receive", self._group, self._client_id))

    def process(self, messages: Sequence[ReceivedMessage]) -> AbstractContextManager[ConsumerCall]:
        """Return what stands around a call of the listener, whose outcome is to be noted in it."""
        return self._around("process", ConsumerCall("process", self._group, self._client_id, messages, len(messages)))

    def settle(self, operation: Operation, given: Sequence[object]) -> AbstractContextManager[ConsumerCall]:
        """Return what stands around a call that settles messages, some of which may be handles."""
        known = [each for each in given if isinstance(each, ReceivedMessage)]
        return self._around("settle", ConsumerCall(operation, self._group, self._client_id, known, len(given)))

    def settle_later(
        self, operation: Operation, given: list[T], settle: Callable[[list[T]], Future[None]]
    ) -> Future[None]:
        """Settle messages by a call that does not wait; the call is over when its future is."""
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
