"""The producer: the public face of sending."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice, repeat
from types import TracebackType
from typing import Any, NamedTuple, Self

from minimq.broker_link import BrokerLinks
from minimq.dispatcher import Dispatcher
from minimq.options import DEFAULT_NAMESERVER, ProducerOptions, nameserver_addresses
from minimq.receipt import BatchReceipt, SendReceipt
from minimq.routing import RouteCache
from minimq_common import batch
from minimq_common.errors import InvalidArgument, MiniMQError, SendFailed
from minimq_common.model import Message, MessageQueue
from minimq_common.names import check_topic

#: Called with the receipt of a message, or with the reason why there is none.
SendCallback = Callable[[SendReceipt | None, MiniMQError | None], None]
#: Chooses the queue for a message among all that are writable.
Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]

#: What a message takes of the buffer beside its body.
_OVERHEAD_BYTES = 64


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
        self._options = _with_changes(options or ProducerOptions(), changes)
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
        """Send a message without waiting for it; blocks only while too much is on its way.

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
        self._dispatcher.reserve(1, size, block=True)
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
            InvalidArgument: a message breaks a rule; those ahead of it were sent.
            TopicNotFound: no broker carries the topic.
            SendFailed: some messages were not acknowledged; the text says how many were.
            Closed: the producer was closed.
        """
        parts = _Parts()
        try:
            for chunk in _chunks(iter(messages), self._options):
                self._send_part(chunk, queue, parts)
        finally:
            parts.wait()
        return parts.receipts()

    def _send_part(self, chunk: _Chunk, queue: MessageQueue | None, parts: _Parts) -> None:
        topic = chunk.messages[0].topic
        if self._routes.known(topic) is None:
            self._routes.route(check_topic(topic))
        self._dispatcher.reserve(len(chunk.messages), chunk.size, block=True)
        complete = parts.expect(chunk.slots)
        try:
            self._dispatcher.send_batch(chunk.messages, queue, chunk.size, complete)
        except MiniMQError as error:
            complete(None, error)
            raise

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
        batch.encode([message], 0, 0, 0, self._options.max_body_bytes)
        return len(message.body) + _OVERHEAD_BYTES


def _with_changes(options: ProducerOptions, changes: dict[str, Any]) -> ProducerOptions:
    unknown = changes.keys() - {field.name for field in dataclasses.fields(options)}
    if unknown:
        names = ", ".join(field.name for field in dataclasses.fields(options))
        raise InvalidArgument(f"unknown option {', '.join(sorted(unknown))}: a producer has {names}")
    return dataclasses.replace(options, **changes)


def _call_back(callback: SendCallback, future: Future[SendReceipt]) -> None:
    error = future.exception()
    if error is None:
        callback(future.result(), None)
    elif isinstance(error, MiniMQError):
        callback(None, error)


class _Chunk(NamedTuple):
    """Messages of one topic that make a batch.

    Attributes:
        messages: at least one.
        size: bytes that they take of the buffer.
        slots: their places among all messages of the call.
    """

    messages: list[Message]
    size: int
    slots: Sequence[int]


def _chunks(messages: Iterator[Message], options: ProducerOptions) -> Iterator[_Chunk]:
    """Cut messages into chunks of one topic and of the size of a batch."""
    start = 0
    wanted = options.batch_messages
    while taken := list(islice(messages, wanted)):
        total = 0
        for part, slots in _by_topic(taken, start):
            sizes = [len(message.body) for message in part]
            total += sum(sizes)
            yield from _by_size(part, slots, sizes, options.batch_bytes)
        start += len(taken)
        # The next chunk is as long as a batch of such messages, so that it need not be cut.
        wanted = max(1, min(options.batch_messages, options.batch_bytes * len(taken) // max(total, 1)))


def _by_topic(messages: list[Message], start: int) -> Iterator[tuple[list[Message], Sequence[int]]]:
    topics = {message.topic for message in messages}
    if len(topics) == 1:
        yield messages, range(start, start + len(messages))
        return
    for topic in topics:
        slots = [slot for slot, message in enumerate(messages, start) if message.topic == topic]
        yield [messages[slot - start] for slot in slots], slots


def _by_size(messages: list[Message], slots: Sequence[int], sizes: list[int], limit: int) -> Iterator[_Chunk]:
    if sum(sizes) <= limit:
        yield _Chunk(messages, sum(sizes) + _OVERHEAD_BYTES * len(messages), slots)
        return
    first = size = 0
    for number, length in enumerate([*sizes, limit + 1]):
        if size and size + length > limit:
            part = messages[first:number]
            yield _Chunk(part, size + _OVERHEAD_BYTES * len(part), slots[first:number])
            first, size = number, 0
        size += length


class _Parts:
    """The outcomes of the batches of one `send_many`."""

    def __init__(self) -> None:
        self._outcomes: list[tuple[Sequence[int], BatchReceipt | MiniMQError]] = []
        self._expected = 0
        #: Protects both fields above.
        self._changed = threading.Condition()

    def expect(self, slots: Sequence[int]) -> Callable[[BatchReceipt | None, MiniMQError | None], None]:
        """Return the completion of a batch with the messages at these places."""
        with self._changed:
            self._expected += 1

        def complete(receipt: BatchReceipt | None, error: MiniMQError | None) -> None:
            outcome = receipt or error
            with self._changed:
                if outcome is not None:
                    self._outcomes.append((slots, outcome))
                if len(self._outcomes) == self._expected:
                    self._changed.notify_all()

        return complete

    def wait(self) -> None:
        """Wait for all outcomes."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._outcomes) == self._expected)

    def receipts(self) -> list[SendReceipt]:
        """Return the receipts of all messages, in their order. Raises `SendFailed` when one has none."""
        receipts: list[Any] = [None] * sum(len(slots) for slots, _ in self._outcomes)
        failures: list[MiniMQError] = []
        for slots, outcome in self._outcomes:
            if not isinstance(outcome, BatchReceipt):
                failures.append(outcome)
                continue
            part = map(SendReceipt, repeat(outcome), range(outcome.count))
            if isinstance(slots, range):
                receipts[slots.start : slots.stop] = part
            else:
                for slot, receipt in zip(slots, part, strict=True):
                    receipts[slot] = receipt
        if failures:
            raise self._failed(failures)
        return receipts

    def _failed(self, failures: list[MiniMQError]) -> SendFailed:
        first = failures[0]
        stored = sum(outcome.count for _, outcome in self._outcomes if isinstance(outcome, BatchReceipt))
        return SendFailed(
            f"{len(failures)} of {len(self._outcomes)} batches failed, {stored} messages were acknowledged; "
            f"the first failure: {first.message.splitlines()[0]}",
            first.tries if isinstance(first, SendFailed) else (),
        )
