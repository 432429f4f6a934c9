"""The implementation that `minimq.Producer`, `minimq.aio.Producer` and `RecordsSender` share."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

from minimq.arguments import check_iterable, check_message_type, waiting_s
from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.sending.atomic_append import Consumed
from minimq.sending.bulk_send import BulkSend
from minimq.sending.chosen_queues import ChosenQueues, check_body, check_chosen
from minimq.sending.hold import Hold, HoldOf, unsupported_hold
from minimq.sending.interceptor import Interceptors, SendInterceptor, reason_of
from minimq.sending.pending_batch import PENDING_BYTES, Outcome, PendingMessage, PendingRecords, Records, messages_were
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt, SendReceipt
from minimq.sending.receipt_future import ReceiptFuture
from minimq.sending.selectors import Selector, consistent_hash
from minimq.sending.sender import Sender
from minimq.sending.statistics import ProducerStatistics
from minimq.sending.topic_finder import TopicFinder
from minimq.sending.transaction_manager import TransactionManager
from minimq_common.batch.builder import KEYS_BYTES, PROPERTY_BYTES
from minimq_common.batch.single import check_message, plain_size
from minimq_common.errors import Closed, InvalidArgument, SendFailed
from minimq_common.model import Message, MessageQueue
from minimq_common.retry_log import RetryLog

log = logging.getLogger(__name__)

#: Seconds that `close` waits for receipts by default: several times `send_timeout_s`.
CLOSE_TIMEOUT_S = 30.0
#: Seconds to wait for receipts after Ctrl-C: a user sits at the terminal.
_INTERRUPTED_FLUSH_S = 2.0


def close_timeout_s(error: BaseException | None) -> float:
    """Return how long the end of a `with` block waits for receipts; shorter after Ctrl-C, which also cancels tasks."""
    return _INTERRUPTED_FLUSH_S if isinstance(error, KeyboardInterrupt | asyncio.CancelledError) else CLOSE_TIMEOUT_S


def after(error: BaseException | None) -> AbstractContextManager[None]:
    """Hide `SendFailed` of a block that closes a producer after an error: that one is raised."""
    return nullcontext() if error is None else suppress(SendFailed)


class ProducerCore:
    """Validates messages, finds their routes, passes them to the `Sender`; owns its parts. Thread-safe."""

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        options: ProducerOptions,
        interceptors: Sequence[SendInterceptor] = (),
        hold_of: HoldOf = unsupported_hold,
    ) -> None:
        self.options = options
        self._hold_of = hold_of
        self._max_body_bytes = options.max_body_bytes
        self._interceptors = Interceptors.of(interceptors)
        self.client = ClusterClient(nameserver, credentials=options.credentials)
        self._process = self.client.connection.process
        self._routes = self.client.routes
        self._known = self._routes.by_topic
        self._chosen = ChosenQueues()
        self._routes.on_change(self._chosen.route_changed)
        self.finder = TopicFinder(self.client, self._chosen, options.send_timeout_s)
        self._find = self.finder.wait_for
        self.sender = Sender(self.client, options)
        self._add = self.sender.add
        self.callbacks, self.check_may_wait = self.sender.callbacks, self.sender.check_may_wait
        self.callback_faults = RetryLog(log)
        self.transactor = TransactionManager(self.client, options, self.finder, self._chosen.choose, self._interceptors)
        #: Called during `close`, after messages have their receipts.
        self.closers: list[Callable[[], object]] = []
        #: Held during `close`: a concurrent `close` returns only once the producer is closed.
        self._closing = threading.RLock()
        self._closed = False

    # ---- one by one -----------------------------------------------------------------------------

    def knows(self, topic: str) -> bool:
        """Return whether `pending` needs no name server for this topic."""
        return self.finder.known(topic) is not None

    def send(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        outcome: Outcome[SendReceipt] | None,
        deadline: float = math.inf,
    ) -> None:
        """Send a message; waits for room in the buffer until the deadline."""
        if self._interceptors:
            item = self.pending(message, queue, selector, outcome)
        else:
            item = self._pending(message, queue, selector, outcome)
        try:
            while (freed := self._add(item)) is not None:
                self.sender.wait_for_room(freed, deadline)
        except BaseException as error:
            self._interceptors.not_sent((item.message,), error)
            raise

    def pending(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        outcome: Outcome[SendReceipt] | None,
    ) -> PendingMessage:
        """Run the interceptors and validate a message. Blocks to query a name server if the topic is not known."""
        if not self._interceptors:
            return self._pending(message, queue, selector, outcome)
        self._process.check()
        message = self._interceptors.before_send(message)
        try:
            return self._pending(message, queue, selector, self._interceptors.watching(message, outcome))
        except BaseException as error:
            self._interceptors.not_sent((message,), error)
            raise

    def _pending(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        outcome: Outcome[SendReceipt] | None,
    ) -> PendingMessage:
        if type(message) is not Message:
            check_message_type(message)
        size = plain_size(message, self._max_body_bytes)
        if size is None:
            size = check_message(message, self._max_body_bytes)
        topic: object = message.topic
        route = self._known.get(topic) if type(topic) is str and topic in self._routes.used else None
        if route is None or (key_queues := route.key_queues):
            route = self._find(message.topic, make=message.message_group is None)
            key_queues = route.key_queues
        memory = size + PENDING_BYTES + KEYS_BYTES * len(message.keys) + PROPERTY_BYTES * len(message.properties)
        if (
            queue is None
            and selector is None
            and message.body
            and message.message_group is None
            and message.deliver_after_s is None
            and message.deliver_at is None
            and not (key_queues or message.recallable)
        ):  # most messages
            return PendingMessage(message, None, size, outcome, memory=memory)
        if not message.body:
            check_body(message, route)
        place = self._chosen.choose(route, message, queue, selector)
        hold = self._hold_of(message, time.monotonic(), time.time())
        may_move = queue is None and place is not None
        return PendingMessage(message, place, size, outcome, hold, memory=memory, may_move=may_move)

    # ---- for asyncio ----------------------------------------------------------------------------

    def try_add(self, item: PendingMessage) -> Future[None] | None:
        """Call `Sender.add`, and report an error to the interceptors."""
        try:
            return self._add(item)
        except BaseException as error:
            self._interceptors.not_sent((item.message,), error)
            raise

    async def add_later(self, item: PendingMessage, freed: Future[None]) -> None:
        """Await room in the buffer, and send a message. If it is cancelled, the message is not sent."""
        waiting: Future[None] | None = freed
        try:
            while waiting is not None:
                if not self.options.block_when_full:
                    self.sender.wait_for_room(waiting)  # raises `BufferFull`
                await asyncio.wait((asyncio.wrap_future(waiting),))
                waiting = self._add(item)
        except BaseException as error:
            self._interceptors.not_sent((item.message,), error)
            raise

    async def find(self, message: Message) -> None:
        """Fetch the route that `pending` needs. Raises as `pending`."""
        make = message.message_group is None
        await self.client.result(lambda: self.finder.find(message.topic, make=make), cancels=True)

    # ---- many at once ---------------------------------------------------------------------------

    def send_many(
        self,
        messages: Iterable[Message],
        queue: MessageQueue | None,
        selector: Selector | None,
        cancelled: threading.Event | None = None,
    ) -> list[SendReceipt]:
        def choose(message: Message) -> MessageQueue | None:
            return self.destination(message, queue, selector)

        self.client.check_open()
        self.check_may_wait()
        is_bound = queue is not None or selector is not None
        given = iter(check_iterable("messages", messages, "messages"))
        with self._interceptors.many() as interceptors:
            bulk = BulkSend(
                self.sender,
                self.options,
                self._find,
                choose,
                self._hold_of,
                interceptors,
                is_bound=is_bound,
                may_move=queue is None,
                cancelled=cancelled,
            )
            try:
                bulk.send(given)
            except Exception:
                bulk.wait()
                raise
            except BaseException:  # Ctrl-C
                bulk.wait(_INTERRUPTED_FLUSH_S)
                raise
            bulk.wait()
            return bulk.receipts()

    # ---- transactions ---------------------------------------------------------------------------

    def append_atomically(self, messages: Sequence[PendingMessage], source: Consumed) -> None:
        """Commit messages, and what `source` has consumed, in one transaction. Raises as `Producer.transaction`."""
        self._process.check()
        self.transactor.commit(messages, source)

    def send_atomically(self, messages: Sequence[tuple[Message, MessageQueue]], source: Consumed) -> None:
        """Do as `append_atomically`, with the interceptors of the producer."""
        transactor = self.transactor
        items = [transactor.accept(message, queue, None) for message, queue in messages]
        self._process.check()
        try:
            batches = transactor.commit(items, source)
        except BaseException as error:
            transactor.interceptors.not_sent((item.message for item in items), error)
            raise
        transactor.notify(items, batches)

    # ---- prepared batches -----------------------------------------------------------------------

    def send_records(
        self,
        topic: str,
        queue: MessageQueue | None,
        records: Records,
        hold: Hold | None = None,
        *,
        may_move: bool = False,
    ) -> Future[BatchReceipt]:
        self._process.check()
        check_chosen(topic, queue)
        route = self._find(topic)  # even if `queue` is given: the accumulator needs the route
        if queue is None and route.key_queues:
            raise InvalidArgument(
                f"topic {topic!r} is compacted: send its messages by a Producer, or choose the queue of each key"
            )
        future: ReceiptFuture[BatchReceipt] = ReceiptFuture()
        batch = PendingRecords(topic, queue, may_move=may_move, count=len(records), completion=future, hold=hold)
        try:
            while (freed := self.sender.reserve(batch, records.size)) is not None:
                self.sender.wait_for_room(freed)
            self.sender.send_batch(batch, records)
        except BaseException as error:  # the records cannot be encoded, or Ctrl-C
            self.sender.take_back(batch, reason_of(error))
            raise
        return future

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        self._process.check()
        return self._chosen.of(self._find(topic))

    def key_queue(self, topic: str) -> Callable[[str], MessageQueue] | None:
        """Return the function from key to queue of a compacted topic; None for other topics."""
        self._process.check()
        route = self._find(topic)
        if not route.key_queues:
            return None
        across = self._chosen.across(route)
        return lambda key: across[consistent_hash(key, len(across))]

    # ---- where to -------------------------------------------------------------------------------

    def destination(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None = None
    ) -> MessageQueue | None:
        """Return the queue that a message must go to; None for any. Blocks to find the topic if it is not known."""
        route = self._find(message.topic, make=message.message_group is None)
        return self._chosen.choose(route, message, queue, selector)

    # ---- all of them ----------------------------------------------------------------------------

    def statistics(self) -> ProducerStatistics:
        self._process.check()
        return replace(self.sender.statistics(), transactions=self.transactor.totals)

    def flush(self, timeout_s: float | None) -> None:
        """Wait until all messages sent so far are acknowledged or failed. Raises `SendFailed` after the timeout."""
        self._process.check()
        self.check_may_wait()
        if timeout_s is not None:
            timeout_s = waiting_s(timeout_s)
        left = self._flush(timeout_s)
        if left:
            raise SendFailed(
                f"{messages_were(left)} still on their way after {timeout_s} s, and may be stored", may_be_stored=left
            )

    def _flush(self, timeout_s: float | None) -> int:
        begun_at = time.monotonic()
        if not self.sender.has_sent:
            return 0
        try:
            left = self.client.wait(lambda: self.sender.flush(begun_at, timeout_s))
        except Closed:  # then all messages have failed
            return 0
        self.callbacks.wait(None if timeout_s is None else max(begun_at + timeout_s - time.monotonic(), 0.0))
        return left

    def close(self, timeout_s: float | None) -> None:
        """Reject new messages, flush and close. Raises `SendFailed` if messages have no receipt. Idempotent.

        Does nothing in a fork: threads and connections belong to the parent process.
        """
        if self._process.is_void:
            return
        timeout_s = None if timeout_s is None else waiting_s(timeout_s)
        with self._closing:
            if self._closed:
                return
            self.check_may_wait()
            self.sender.reject()
            has_left = self._flush(timeout_s)
            for closer in self.closers:
                closer()
            left, in_doubt = self.sender.close()
            self.client.connection.call_soon(self.transactor.streams.close)
            self.client.close()
            self._closed = True  # last: after Ctrl-C, `close` can be called again
        if has_left and left:
            raise SendFailed(
                f"{messages_were(left)} not acknowledged within {timeout_s} s before the producer closed, {in_doubt} "
                "of them may be stored",
                may_be_stored=in_doubt,
                not_stored=left - in_doubt,
            )

    def release(self) -> None:
        """Close a producer that the user dropped, once all messages have an outcome: futures may still wait for one."""
        self.close(None)  # ends: each message fails after `send_timeout_s` at the latest
