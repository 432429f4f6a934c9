"""The blocking producer, the public interface of sending."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Self, Unpack

from minimq.arguments import check_plain_function
from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import Finalizer
from minimq.connection.fork_guard import loop_threads
from minimq.options import build_options
from minimq.sending.hold import Hold, unsupported_hold
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.producer_core import CLOSE_TIMEOUT_S, ProducerCore, after, close_timeout_s
from minimq.sending.producer_options import ProducerChanges, ProducerOptions
from minimq.sending.receipt import SendReceipt
from minimq.sending.receipt_future import ReceiptFuture
from minimq.sending.selectors import Selector
from minimq.sending.statistics import ProducerStatistics
from minimq_common.errors import MinimqError
from minimq_common.model import Message, MessageQueue
from minimq_common.retry_log import RetryLog

#: Called with the receipt of a message, or with the error.
SendCallback = Callable[[SendReceipt | None, MinimqError | None], None]


class BaseProducer:
    """The part of the producer that `minimq` and `minimq.aio` share. Features derive from it, and add methods."""

    #: Set by the feature whose messages brokers hold back.
    _hold_of: staticmethod[[Message, float, float], Hold | None] = staticmethod(unsupported_hold)

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        interceptors: Sequence[SendInterceptor] = (),
        **options: Unpack[ProducerChanges],
    ) -> None:
        chosen = build_options(ProducerOptions, options, type(self))
        self._core = ProducerCore(nameserver, chosen, interceptors, self._hold_of)
        self._finalizer = Finalizer(self, self._core.release, self._core.flush)

    def statistics(self) -> ProducerStatistics:
        """Return the statistics so far: messages, retries, bytes, latencies, and the brokers that are avoided now."""
        return self._core.statistics()


class BlockingProducer(BaseProducer):
    """The methods of `minimq.Producer`, except those of features in `minimq.producer`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with after(error):
            self.close(close_timeout_s(error))

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> SendReceipt:
        """Send a message and wait until it is on disk.

        Args:
            message: the message to send.
            queue: send to this queue only.
            selector: chooses the queue, such as `by_hash("order-17")`. It chooses from the queues of unavailable
                brokers, too, so that a key keeps its queue.

        Raises:
            InvalidArgument: the message is invalid.
            TopicNotFound: no broker carries the topic.
            TopicUnavailable, Unavailable: the topic was not found within `send_timeout_s`, because its brokers or all
                name servers are unavailable.
            BufferFull: the buffer is full, and `block_when_full` is off.
            SendFailed: all attempts failed; the text lists them, and `may_be_stored` says whether the message may be
                stored. Messages that were sent in the same batch count as well.
            Closed: the producer was closed.
        """
        core, thread = self._core, threading.get_ident()
        if thread in loop_threads or thread == core.callbacks.ident:
            core.check_may_wait()
        arrived: SimpleQueue[SendReceipt | MinimqError] = SimpleQueue()  # without a lock that Ctrl-C could leave locked
        core.send(message, queue, selector, arrived.put)
        outcome = arrived.get()
        if not isinstance(outcome, MinimqError):
            return outcome
        try:
            raise outcome
        finally:
            del outcome  # breaks the cycle: its traceback holds this frame

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        callback: SendCallback | None = None,
    ) -> Future[SendReceipt]:
        """Send a message without waiting for its receipt. If the buffer is full, `block_when_full` decides.

        Args:
            message: the message to send.
            queue: send to this queue only.
            selector: chooses the queue, as for `send`.
            callback: a plain function, called with the receipt and None, or with None and the error. A thread of the
                producer calls all callbacks, one after the other: they must not block. Of this producer, they may
                call `send_async` and `send_one_way`.

        Returns:
            A future of the receipt. It raises as `send`.

        Raises:
            InvalidArgument: the message is invalid, or the callback is a coroutine function.
        """
        future: ReceiptFuture[SendReceipt] = ReceiptFuture()
        if callback is not None:
            check_plain_function("callback", callback)
            future.add_done_callback(partial(_call_back, callback, self._core.callback_faults))
        self._core.send(message, queue, selector, future)
        return future

    def send_one_way(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> None:
        """Send a message without a receipt: cheaper, and retried like any other.

        An invalid message raises as in `send`. Later failures appear only in `statistics`.
        """
        self._core.send(message, queue, selector, None)

    def send_many(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> list[SendReceipt]:
        """Send messages in large batches and wait until all are on disk. The fast path.

        Args:
            messages: messages of one or several topics; the iterable is read as they are sent, never held as a whole.
            queue: send all to this queue, in their order.
            selector: chooses the queue of each, as for `send`. Messages for the same queue keep their order.

        Returns:
            The receipts, in the order of the messages.

        Raises:
            InvalidArgument: a message is invalid; only some of the earlier ones were sent.
            TopicNotFound: no broker carries the topic.
            TopicUnavailable, Unavailable: the topic was not found within `send_timeout_s`, because its brokers or all
                name servers are unavailable.
            BufferFull: the buffer is full, and `block_when_full` is off; only earlier messages were sent.
            SendFailed: some messages were not acknowledged; the error has the numbers of those that are stored, may be
                stored, and are not.
            Closed: the producer was closed.
        """
        return self._core.send_many(messages, queue, selector)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all messages sent so far are on disk or have failed, and callbacks have run.

        Also waits until all replies are stored. Does not wait for replies to requests.

        Args:
            timeout: seconds; None waits without a limit.

        Raises:
            SendFailed: messages or replies were still in flight after that time.
        """
        self._core.flush(timeout)

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Flush and close. Idempotent.

        Args:
            timeout: seconds to wait for messages in flight.

        Raises:
            SendFailed: messages were not acknowledged in that time; the text has their number. Their futures
                fail with `Closed`.
        """
        self._finalizer.close(partial(self._core.close, timeout))


def _call_back(callback: SendCallback, faults: RetryLog, future: Future[SendReceipt]) -> None:
    if future.cancelled():  # the user wants no callback any more
        return
    error = future.exception()
    try:
        if error is None:
            callback(future.result(), None)
        elif isinstance(error, MinimqError):
            callback(None, error)
    except Exception as fault:  # noqa: BLE001 - it may raise anything
        faults.crashed("producer: a callback raised callback=%r", callback, cause=fault)
