"""The blocking producer, the public interface of sending."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from minimq.arguments import check_plain_function
from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import Finalizer
from minimq.connection.loop_calls import Awaited
from minimq.features.delayed.recalls import RecallResult
from minimq.features.transactions.open_transaction import M, ProducerTransaction, TransactionalConsumer
from minimq.options import build_options
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.producer_core import CLOSE_TIMEOUT_S, ProducerCore
from minimq.sending.producer_options import ProducerChanges, ProducerOptions
from minimq.sending.receipt import BatchReceipt, SendReceipt
from minimq.sending.receipt_future import ReceiptFuture
from minimq.sending.selectors import Selector
from minimq.sending.statistics import ProducerStatistics
from minimq_common.errors import MinimqError, SendFailed
from minimq_common.model import Message, MessageQueue
from minimq_common.retry_log import RetryLog

if TYPE_CHECKING:
    from minimq.features.tables.row_writer import OnRejected

#: Called with the receipt of a message, or with the error.
SendCallback = Callable[[SendReceipt | None, MinimqError | None], None]


class BaseProducer:
    """The part of the producer that `minimq` and `minimq.aio` share."""

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        interceptors: Sequence[SendInterceptor] = (),
        **options: Unpack[ProducerChanges],
    ) -> None:
        chosen = build_options(ProducerOptions, options, type(self))
        self._core = ProducerCore(nameserver, chosen, interceptors)
        self._finalizer = Finalizer(self, self._core.release, self._core.flush)

    def statistics(self) -> ProducerStatistics:
        """Return the statistics so far: messages, retries, bytes, latencies, and the brokers that are avoided now."""
        return self._core.statistics()


class BlockingProducer(BaseProducer):
    """The methods of `minimq.Producer`, except those of features in `minimq.producer`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close(self._core.close_timeout_s(interrupted=isinstance(error, KeyboardInterrupt)))
        except SendFailed:
            if error is None:  # otherwise raise the error of the block
                raise

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
        if threading.get_ident() == self._core.callbacks.ident:
            self._core.check_may_wait()
        awaited: Awaited[SendReceipt] = Awaited()
        self._core.send(message, queue, selector, awaited)
        return awaited.result()

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

    def send_arrow(
        self, topic: str | None, rows: object, *, on_rejected: OnRejected | None = None
    ) -> list[BatchReceipt]:
        """Send the rows of an Arrow table as messages, and wait until all are on disk.

        Needs `minimq[arrow]`. Bodies are copied once, into the batches that are sent. Interceptors do not see the rows.
        Rows cannot be delayed, nor sent to a FIFO topic. In a compacted topic, a null body is a tombstone.

        Args:
            topic: the topic of all rows; None if there is a column `topic`.
            rows: a pyarrow table, record batch or `RecordBatchReader`, which is read as it is sent; or another object
                with Arrow's C stream interface, such as a data frame of Polars or pandas. Columns: `body`, and any of
                `tag`, `keys`, `properties`, `sharding_key`, `queue_id` and `broker_name`; see docs/arrow.md.
            on_rejected: called with each invalid row, as a record batch of one row, and the reason; the other rows are
                sent. By default, the first invalid row raises `InvalidArgument`. A body over the broker's limit, but
                not over `max_body_bytes`, still raises.

        Returns:
            The receipts of the batches, in the order in which they were sent. Each has its queue, the offset of its
            first message and their number.

        Raises:
            InvalidArgument: a column is missing or has a wrong type, or a row is invalid; some of the earlier rows were
                sent.
            TopicNotFound: no broker carries the topic.
            TopicUnavailable, Unavailable: the topic was not found within `send_timeout_s`.
            BufferFull: the buffer is full, and `block_when_full` is off.
            SendFailed: a batch was not acknowledged; the error has the numbers of rows that are stored, may be stored,
                and are not. Further rows were not read.
            Closed: the producer was closed.
        """
        from minimq.features.tables.row_writer import send_rows  # needs pyarrow

        return send_rows(self._core, topic, rows, on_rejected)

    def recall(self, handle: str | None) -> RecallResult:
        """Recall a delayed message, so that it is never delivered.

        The broker decides: a message is either recalled or delivered. Any producer, and `Admin`, may recall it.

        Args:
            handle: `receipt.recall_handle` of a message that was sent with `recallable=True`.

        Returns:
            RECALLED or ALREADY_RECALLED, which are true, or TOO_LATE, which is false.

        Raises:
            InvalidArgument: this is not a recall handle, or it belongs to another cluster.
            TopicNotFound: the topic was deleted, and the message with it.
            AccessDenied: another user sent it, and this user may not manage the topic.
            MinimqError: the broker was not reached within `send_timeout_s`, or rejected: repeat the call to find out
                whether the message is recalled.
            Closed: the producer was closed.
        """
        return self._core.recall(handle).wait()

    @overload
    def transaction(self, consumer: None = None) -> ProducerTransaction[Any]: ...

    @overload
    def transaction(self, consumer: TransactionalConsumer[M]) -> ProducerTransaction[M]: ...

    def transaction(self, consumer: TransactionalConsumer[Any] | None = None) -> ProducerTransaction[Any]:
        """Return a transaction for a `with` block: its messages are stored all together at one broker, or not at all.

        The end of the block commits it, within `send_timeout_s`; a block that raises sends nothing. See
        docs/transactions.md.

        Args:
            consumer: the source of messages for `receive`: they count as consumed once the transaction is committed;
                otherwise they are redelivered. A `PullConsumer` needs `auto_commit=False`.

        Raises:
            InvalidArgument: the consumer cannot be part of a transaction.
            TopicNotFound: at the end of the block: no single broker, or not the broker of the consumed messages,
                carries all topics of the transaction.
            Fenced: at the end of the block: the consumed messages now belong to other consumers. Nothing is stored; the
                loop can continue.
            SendFailed: at the end of the block: the commit was not acknowledged in time. The text says if it may be
                stored.
            Closed: the producer was closed.
        """
        return ProducerTransaction(self._core.transactor, consumer)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all messages sent so far are on disk or have failed, also those that a `send_many` has read.

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
