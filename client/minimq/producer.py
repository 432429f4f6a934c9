"""The producer: the public face of sending."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from minimq.broker_link import BrokerLinks
from minimq.bulk_send import OVERHEAD_BYTES, BulkSend
from minimq.dispatcher import Dispatcher
from minimq.options import DEFAULT_NAMESERVER, ProducerOptions, nameserver_addresses, with_changes
from minimq.receipt import SendReceipt
from minimq.routing import RouteCache
from minimq_common.batch_builder import BatchBuilder
from minimq_common.errors import MiniMQError, SendFailed
from minimq_common.model import Message, MessageQueue
from minimq_common.names import check_topic

#: Called with the receipt of a message, or with the reason why there is none.
SendCallback = Callable[[SendReceipt | None, MiniMQError | None], None]
#: Chooses the queue for a message among all that are writable.
Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


class Producer:
    """Sends messages; a receipt means that the message is on the disk of its broker.

    Messages go to all writable queues of their topic in turn. What is handed in while requests are under way travels
    in one batch, and a batch goes to one queue. Thread-safe: one producer serves a whole process.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", or a sequence of addresses.
        options: how to send; single options may be given by name instead.

    Raises:
        InvalidArgument: an address or an option is wrong.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] = DEFAULT_NAMESERVER,
        options: ProducerOptions | None = None,
        **changes: Any,  # noqa: ANN401 - the fields of ProducerOptions
    ) -> None:
        self._options = with_changes(options or ProducerOptions(), changes)
        self._routes = RouteCache(nameserver_addresses(nameserver))
        self._links = BrokerLinks()
        self._dispatcher = Dispatcher(self._routes, self._links, self._options)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except SendFailed:
            if error is None:  # otherwise the error that is on its way says more
                raise

    # ---- sending --------------------------------------------------------------------------------

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> SendReceipt:
        """Send a message and wait until it is on disk.

        Args:
            message: what to send.
            queue: where it must go; then it is never moved to another queue.
            selector: chooses that queue among the writable ones.

        Raises:
            InvalidArgument: the message breaks a rule.
            TopicNotFound: no broker carries the topic.
            BufferFull: there is no room for the message, and `block_when_full` is off.
            SendFailed: all tries failed; its text lists them.
            Closed: the producer was closed.
        """
        return self.send_async(message, queue=queue, selector=selector).result()

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        callback: SendCallback | None = None,
    ) -> Future[SendReceipt]:
        """Send a message without waiting for it; while the buffer is full, `block_when_full` says what happens.

        Args:
            message: what to send.
            queue: where it must go; then it is never moved to another queue.
            selector: chooses that queue among the writable ones.
            callback: called with the outcome by a thread of the producer; it must not block.

        Returns:
            A future of the receipt, which raises what `send` would.
        """
        size = self._check(message)
        if selector is not None:
            queue = selector(self._routes.route(message.topic).write_queues(), message)
        elif self._routes.known(message.topic) is None:
            self._routes.route(message.topic)
        self._dispatcher.reserve(1, size)
        future = self._dispatcher.send_message(message, queue, size)
        if callback is not None:
            future.add_done_callback(lambda done: _call_back(callback, done))
        return future

    def send_many(self, messages: Iterable[Message], *, queue: MessageQueue | None = None) -> list[SendReceipt]:
        """Send messages in large batches and wait until all are on disk. The fast path.

        Args:
            messages: what to send, of one topic or several; read as it is sent, never held as a whole.
            queue: where all must go, in their order.

        Returns:
            The receipts, in the order of the messages.

        Raises:
            InvalidArgument: a message breaks a rule; only some of those ahead of it were sent.
            TopicNotFound: no broker carries the topic.
            BufferFull: there is no room for a batch, and `block_when_full` is off; only what is ahead of it was sent.
            SendFailed: some messages were not acknowledged; the text says how many were.
            Closed: the producer was closed.
        """
        bulk = BulkSend(self._dispatcher, self._routes, queue, self._options)
        try:
            bulk.send(iter(messages))
        finally:
            bulk.wait()
        return bulk.receipts()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything handed in is on disk or has failed.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            SendFailed: messages were still on their way after that time.
        """
        left = self._dispatcher.flush(timeout)
        if left:
            raise SendFailed(f"{left} messages were still on their way after {timeout} s")

    def close(self, timeout: float | None = None) -> None:
        """Flush and end. Idempotent.

        Args:
            timeout: seconds to wait for what is on its way; the option `close_timeout_s` unless given.

        Raises:
            SendFailed: messages were not acknowledged in that time; their futures fail with `Closed`.
        """
        if self._closed:
            return
        self._closed = True
        timeout = self._options.close_timeout_s if timeout is None else timeout
        left = self._dispatcher.close(timeout)
        self._links.close()
        self._routes.close()
        if left:
            raise SendFailed(f"{left} messages were not acknowledged within {timeout} s before the producer closed")

    def _check(self, message: Message) -> int:
        """Check a single message as its batch will be, so that it cannot spoil others. Returns its size."""
        check_topic(message.topic)
        records = BatchBuilder(self._options.max_body_bytes)
        records.add([message])
        records.build(0, 0, 0)
        return records.size + OVERHEAD_BYTES


def _call_back(callback: SendCallback, future: Future[SendReceipt]) -> None:
    error = future.exception()
    if error is None:
        callback(future.result(), None)
    elif isinstance(error, MiniMQError):
        callback(None, error)
