"""The sending side of a client, as both faces use it: `minimq.Producer` and `minimq.aio.Producer`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple

from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.sending.auto_create import AutoCreate
from minimq.sending.bulk_send import OVERHEAD_BYTES, BulkSend
from minimq.sending.decisions import Transaction
from minimq.sending.dispatcher import Dispatcher
from minimq.sending.fault_probe import FaultProbe
from minimq.sending.interceptor import Interceptors, SendInterceptor, WatchedOutcome
from minimq.sending.outgoing import InBuffer, Outcome, Records, messages_were
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selection import Selector
from minimq.sending.receipt import BatchReceipt, SendReceipt
from minimq.sending.selector_queues import SelectorQueues
from minimq.sending.send_buffer import SendBuffer
from minimq.sending.statistics import ProducerStatistics
from minimq.transport.home_process import HomeProcess
from minimq_common.errors import InvalidArgument, MiniMQError, SendFailed, TopicNotFound, TopicUnavailable
from minimq_common.message_check import check_message
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.names import check_topic


class Prepared(NamedTuple):
    """A message that is ready to be handed in."""

    message: Message
    queue: MessageQueue | None
    size: int


class Sender:
    """Prepares messages, hands them in, and ends all that serves them. Thread-safe.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` that others use as well.
        options: how to send.
        interceptors: see `SendInterceptor`.

    Raises:
        InvalidArgument: an address is wrong.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster,
        options: ProducerOptions,
        interceptors: Sequence[SendInterceptor],
    ) -> None:
        self._options = options
        self._interceptors = Interceptors(interceptors)
        self._client = ClusterClient(nameserver)
        self._routes = self._client.routes
        self._auto_create = AutoCreate(self._client)
        self._selector_queues = SelectorQueues()
        self._routes.on_change(self._selector_queues.changed)
        self._buffer = SendBuffer(options.buffer_bytes, block_when_full=options.block_when_full)
        self._dispatcher = Dispatcher(self._routes, self._client.links, self._buffer, options)
        self._probe = FaultProbe(
            self._client.links, self._dispatcher.to_probe, self._dispatcher.probed, options.probe_interval_s
        )
        #: Held while the producer closes, so that nobody thinks it is closed before it is.
        self._closing = threading.RLock()
        self._closed = False
        self._process = HomeProcess("producer")

    @property
    def is_forked(self) -> bool:
        """True if the caller runs in a fork of the process that made this."""
        return self._process.is_forked

    def check_process(self) -> None:
        """Raise `Closed` in a fork."""
        self._process.check()

    # ---- one by one -----------------------------------------------------------------------------

    def knows(self, topic: str) -> bool:
        """Tell whether `prepare` can do without asking a name server."""
        return self._routes.known(topic) is not None

    def prepare(self, message: Message, queue: MessageQueue | None, selector: Selector | None) -> Prepared:
        """Return the message as it will be sent. Asks a name server, and so waits, when its topic is not known.

        Raises:
            InvalidArgument: the message breaks a rule, or its queue is of another topic.
            TopicNotFound: no broker carries the topic, and none makes topics by itself.
            TopicUnavailable: its brokers are away, or none is registered, for all the time that a message is tried.
            TransportError: no name server answers in that time.
        """
        self._process.check()
        if not self._interceptors:
            return self._prepared(message, queue, selector)
        message = self._interceptors.before_send(message)
        with self._told(message):
            return self._prepared(message, queue, selector)

    def _prepared(self, message: Message, queue: MessageQueue | None, selector: Selector | None) -> Prepared:
        size = check_message(message, self._options.max_body_bytes) + OVERHEAD_BYTES
        self._find(message.topic)
        return Prepared(message, self._destination(message, queue, selector), size)

    def hand_in(self, prepared: Prepared, outcome: Outcome | None) -> None:
        """Send it, after waiting for room in the buffer. Raises `BufferFull` and `Closed`."""
        with self._told(prepared.message):
            ticket = self._buffer.reserve(prepared.message.topic, 1, prepared.size)
        self._send(prepared, ticket, outcome)

    def try_hand_in(self, prepared: Prepared, outcome: Outcome | None) -> bool:
        """Send it if there is room in the buffer at once; return whether there was. Raises `Closed`."""
        with self._told(prepared.message):
            ticket = self._buffer.try_reserve(prepared.message.topic, 1, prepared.size)
        if ticket is None:
            return False
        self._send(prepared, ticket, outcome)
        return True

    def _send(self, prepared: Prepared, ticket: int, outcome: Outcome | None) -> None:
        if self._interceptors:
            outcome = WatchedOutcome(self._interceptors, prepared.message, outcome)
        room = InBuffer((ticket,), prepared.size)
        self._dispatcher.send_message(prepared.message, prepared.queue, room, outcome)

    @contextmanager
    def _told(self, message: Message) -> Iterator[None]:
        """Tell the interceptors when a message that they have seen is not even handed in."""
        try:
            yield
        except BaseException as error:
            told = error if isinstance(error, MiniMQError) else SendFailed(f"the message was not handed in: {error!r}")
            self._interceptors.after_send(message, None, told)
            raise

    # ---- many at once ---------------------------------------------------------------------------

    def send_many(
        self, messages: Iterable[Message], queue: MessageQueue | None, selector: Selector | None
    ) -> list[SendReceipt]:
        """Send messages in large batches and wait for all; see `Producer.send_many`."""
        choose: Callable[[Message], MessageQueue | None] | None = None
        if queue is not None or selector is not None:

            def choose(message: Message) -> MessageQueue | None:
                return self._destination(message, queue, selector)

        self._process.check()
        bulk = BulkSend(self._dispatcher, self._buffer, self._options, self._find, choose)
        given = iter(messages)
        if self._interceptors:
            given = bulk.watched(given, self._interceptors.before_send, self._interceptors.after_send)
        try:
            bulk.send(given)
        finally:
            bulk.wait()
        return bulk.receipts()

    # ---- prepared batches -----------------------------------------------------------------------

    def send_records(
        self, topic: str, queue: MessageQueue | None, records: Records, transaction: Transaction | None
    ) -> Future[BatchReceipt]:
        """Send records as one batch; see `RecordsSender.send`."""
        self._process.check()
        self._check_queue(topic, queue)
        self._find(topic)
        future: Future[BatchReceipt] = Future()

        def complete(receipt: BatchReceipt | None, error: MiniMQError | None) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if receipt is not None:
                future.set_result(receipt)
            else:
                future.set_exception(error)

        size = records.size
        room = InBuffer((self._buffer.reserve(topic, len(records), size),), size)
        self._dispatcher.send_batch(topic, queue, records, room, complete, transaction)
        return future

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of a topic among which selectors choose."""
        self._process.check()
        return self._selector_queues.of(self._find(topic))

    # ---- where to -------------------------------------------------------------------------------

    def _find(self, topic: str) -> TopicRoute:
        """Return the route of a topic; brokers that are allowed to make the topic do so when there is none.

        Absent servers are waited for, for as long as a message may be tried.
        """
        try:
            known = self._routes.known(topic)
        except TypeError:  # it is a list, or another thing that cannot be looked up
            known = None
        if known is not None:
            return known
        check_topic(topic)
        return self._routes.patiently(
            lambda timeout_s: self._find_or_make(topic, timeout_s), self._options.send_timeout_s
        )

    def _find_or_make(self, topic: str, timeout_s: float) -> TopicRoute:
        try:
            return self._routes.route(topic, timeout_s)
        except (TopicNotFound, TopicUnavailable) as error:
            absent = error
        try:
            self._auto_create.create(topic)
        except TopicNotFound as refusal:
            raise (absent if absent.retriable else refusal) from None
        return self._routes.route(topic, timeout_s)

    def _destination(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None
    ) -> MessageQueue | None:
        if selector is not None:
            queue = selector(self._selector_queues.of(self._find(message.topic)), message)
            chosen: object = queue
            if not isinstance(chosen, MessageQueue) or type(chosen.queue_id) is not int:
                raise InvalidArgument(f"the selector returned {queue!r}: it must return one of the queues it was given")
        self._check_queue(message.topic, queue)
        return queue

    @staticmethod
    def _check_queue(topic: str, queue: MessageQueue | None) -> None:
        if queue is not None and queue.topic != topic:
            raise InvalidArgument(f"a message for topic {topic!r} cannot go to queue {queue} of another topic")

    # ---- all of them ----------------------------------------------------------------------------

    def statistics(self) -> ProducerStatistics:
        """Return what was done so far."""
        self._process.check()
        return self._dispatcher.statistics()

    def flush(self, timeout_s: float | None) -> None:
        """Wait for the outcome of all that was handed in before. Raises `SendFailed` when it is not there in time."""
        self._process.check()
        left = self._buffer.wait(timeout_s)
        if left:
            raise SendFailed(f"{messages_were(left)} still on their way after {timeout_s} s")

    def close(self, timeout_s: float | None) -> None:
        """Take nothing in any more, flush and end; raises `SendFailed`, which names what has no receipt. Idempotent.

        In a fork, whose threads and connections they are not, nothing is done.
        """
        if self._process.is_forked:
            return
        with self._closing:
            if self._closed:
                return
            timeout_s = self._options.close_timeout_s if timeout_s is None else timeout_s
            self._buffer.close()
            self._buffer.wait(timeout_s)
            left = self._buffer.left()
            self._probe.close()
            self._dispatcher.close()
            self._client.close()
            self._closed = True  # only now: a call that was interrupted can be made again
        if left:
            topics = ", ".join(f"{count} for topic {topic}" for topic, count in sorted(left.items()))
            raise SendFailed(
                f"{messages_were(left.total())} not acknowledged within {timeout_s} s before the producer closed: "
                f"{topics}"
            )

    def release(self) -> None:
        """End when all that was handed in has its outcome, for which somebody may wait: nobody has the producer."""
        self._buffer.close()
        self._buffer.wait(None)  # each is tried for `send_timeout_s` at most
        self.close(0.0)
