"""Commits the transactions of a producer, each by one atomic append, which is retried until its outcome is known."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from minimq.arguments import check_message_type
from minimq.connection.broker_troubles import choose_brokers
from minimq.connection.client import ClusterClient
from minimq.connection.loop_calls import PER_TURN, LoopStep, YieldToLoop
from minimq.connection.master_calls import call_master
from minimq.connection.retry_schedule import MAX_PROXY_ATTEMPTS, PAUSE_S
from minimq.connection.routed_master import RoutedMaster
from minimq.sending.append_stream import AtomicStream, StreamsByAddress
from minimq.sending.chosen_queues import check_body
from minimq.sending.interceptor import Interceptors
from minimq.sending.pending_batch import (
    IN_DOUBT,
    BatchNumber,
    PendingMessage,
    encode_batch,
    new_producer_id,
    number_taken,
)
from minimq.sending.placement import absent_brokers, bound_queue, brokers_of, queues_at
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import STATUSES, BatchReceipt, SendStatus
from minimq.sending.selectors import Selector
from minimq.sending.statistics import NO_TRANSACTIONS, TransactionTotals
from minimq.sending.topic_finder import TopicFinder
from minimq_common.batch.single import check_message
from minimq_common.errors import (
    Closed,
    Fenced,
    InternalError,
    InvalidArgument,
    MinimqError,
    QueueNotFound,
    RejectedByProxy,
    SendFailed,
    StaleSequence,
    TopicNotFound,
    Unavailable,
)
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.names import check_topic
from minimq_common.wire.protocol_bounds import MAX_ATOMIC_BATCHES, MAX_ATOMIC_BYTES
from minimq_proto.v1 import broker_pb2

#: Error answers of a broker after which the transaction may nevertheless be stored.
_IN_DOUBT = (*IN_DOUBT, StaleSequence)
#: Encoding lets other tasks run after this many bytes of messages; each batch counts as some bytes more.
_LARGE_BYTES, _BATCH_BYTES = 1 << 17, 1 << 10


def is_in_doubt(error: MinimqError) -> bool:
    """Return whether a request may be stored although it failed with this error."""
    return (error.was_sent and not error.answered) or isinstance(error, _IN_DOUBT)


class Part(msgspec.Struct):
    """A batch of a transaction."""

    queue: MessageQueue
    message_group: str | None
    #: Indices of its messages in the transaction.
    indices: list[int] = []
    #: Bytes of its messages.
    size: int = 0
    sequence: int = -1
    data: bytes = b""
    #: Whether no message names its queue, so that another one takes its place if it is removed.
    may_move: bool = True


async def divided(
    items: Sequence[PendingMessage], queues: Iterable[MessageQueue], options: ProducerOptions
) -> list[Part]:
    """Divide messages into batches by queue and message group; each keeps the order of its messages."""
    parts: list[Part] = []
    filling: dict[tuple[MessageQueue, str | None], Part] = {}
    for index, (item, queue) in enumerate(zip(items, queues, strict=True)):
        if index and not index % PER_TURN:
            await YieldToLoop()
        key = queue, item.message.message_group
        part = filling.get(key)
        if part is None or len(part.indices) >= options.batch_messages or part.size + item.size > options.batch_bytes:
            part = filling[key] = Part(*key)
            parts.append(part)
        part.indices.append(index)
        part.may_move = part.may_move and (item.queue is None or item.may_move)
        part.size += item.size
    return parts


class PlacedMessages(NamedTuple):
    """The encoded messages of a transaction, and the broker chosen for them."""

    broker_name: str
    topic: str
    parts: Sequence[Part]
    #: True if another broker could store them.
    others: bool

    @property
    def messages(self) -> int:
        return sum(len(part.indices) for part in self.parts)

    @property
    def may_move(self) -> bool:
        """True if no message names its queue."""
        return all(part.may_move for part in self.parts)


#: The receipts of batches, with the indices of their messages in the transaction.
StoredBatches = Sequence[tuple[Sequence[int], BatchReceipt]]


class Consumed(Protocol):
    """The messages that an atomic append consumes. Used on the event loop of the sender's connection."""

    @property
    def queue(self) -> MessageQueue | None:
        """A queue of the broker of the messages, which must store the append; None if nothing was received."""

    def progress(self) -> broker_pb2.AtomicProgress:
        """Return the progress to commit, for one attempt. Raises `Fenced` if other consumers have got the messages."""

    def answered(self, error: MinimqError | None) -> None:
        """Record the outcome of an attempt."""

    def may_pass(self) -> bool:
        """Return whether a retry may succeed after `Fenced`: a new master may renew the lease."""


class _TryOtherBroker(Exception):
    """A broker has rejected a transaction, and another one may accept it."""


class _Absent(Exception):
    """No broker can store a transaction now, but one without a master could once it has one."""

    def __init__(self, brokers: Sequence[str], topics: Collection[str]) -> None:
        names = " and ".join(brokers)
        self.error = Unavailable(f"no available broker has all its topics and queues: start {names}")
        self.topics = topics


class TransactionManager:
    """Commits the transactions of one producer. Thread-safe."""

    def __init__(
        self,
        client: ClusterClient,
        options: ProducerOptions,
        finder: TopicFinder,
        choose: Callable[[TopicRoute | None, Message, MessageQueue | None, Selector | None], MessageQueue | None],
        interceptors: Interceptors,
    ) -> None:
        self.client = client
        self._options = options
        self._finder = finder
        self._choose = choose
        self.interceptors = interceptors
        self.totals = NO_TRANSACTIONS
        self.producer_id = new_producer_id()
        self._lock = threading.Lock()  # protects `totals`, `_next`, `_open` and `_turn`
        self._next = 0
        #: First sequence number of each transaction without an outcome, ascending.
        self._open: dict[int, None] = {}
        self._turn = random.randrange(1 << 16)
        #: Used on the event loop of the connection.
        self.streams = StreamsByAddress(client.connection, AtomicStream)

    def count(self, *, committed: int = 0, rolled_back: int = 0, failed: int = 0, messages: int = 0) -> None:
        with self._lock:
            more = (committed, rolled_back, failed, messages)
            self.totals = TransactionTotals(*map(int.__add__, self.totals, more))

    # ---- by the caller ------------------------------------------------------------------------------

    def accept(self, message: Message, queue: MessageQueue | None, selector: Selector | None) -> PendingMessage:
        """Run the interceptors and validate a message. Does not block: the topic need not be known."""
        check_message_type(message)
        if self.interceptors:
            message = self.interceptors.before_send(message)
        try:
            size = check_message(message, self._options.max_body_bytes)
            check_topic(message.topic)
            if message.deliver_after_s is not None or message.deliver_at is not None:
                raise InvalidArgument(
                    "a delayed message cannot be part of a transaction: leave out its due time, or send it by itself"
                )
            self._choose(None, message, queue, selector)
            born_ms = time.time_ns() // 1_000_000
            return PendingMessage(message, queue, size, None, born_ms=born_ms, selector=selector)
        except BaseException as error:
            self.interceptors.not_sent((message,), error)
            raise

    async def commit(self, messages: Sequence[PendingMessage], source: Consumed | None) -> StoredBatches:
        """Commit a transaction; return the receipts of its batches."""
        consumed = source.queue if source is not None else None
        if not messages and consumed is None:
            return []
        deadline = time.monotonic() + self._options.send_timeout_s
        avoid: set[str] = set()
        while True:
            placed = await self.place(messages, consumed, avoid, deadline=deadline)
            try:
                _check_size(placed.parts)
                append = partial(self._append, placed, source if consumed is not None else None, deadline)
                answers = await LoopStep(self.client, append)
                return _receipts(placed, answers, self.producer_id)
            except _TryOtherBroker:
                avoid.add(placed.broker_name)
            finally:
                self.settled(placed)

    async def place(
        self,
        messages: Sequence[PendingMessage],
        at: MessageQueue | None,
        avoid: Collection[str],
        others: Collection[str] = (),
        *,
        deadline: float,
    ) -> PlacedMessages:
        """Choose a broker that carries all topics, and encode the messages. Call `settled` after their outcome.

        Waits until the deadline for a broker that is offline.
        """
        while True:
            try:
                return await self._place(messages, at, avoid, others)
            except _Absent as absent:
                if time.monotonic() >= deadline:
                    raise _failed(absent.error, (), len(messages), in_doubt=False) from None
                await LoopStep(self.client, partial(self._look_again, absent.topics))

    async def _place(
        self,
        messages: Sequence[PendingMessage],
        at: MessageQueue | None,
        avoid: Collection[str],
        others: Collection[str],
    ) -> PlacedMessages:
        made: dict[str, bool] = {}  # whether a topic may be created automatically: FIFO topics may not
        for number, item in enumerate(messages, 1):
            made[item.message.topic] = item.message.message_group is None and made.get(item.message.topic, True)
            if not number % PER_TURN:
                await YieldToLoop()
        made |= {topic: made.get(topic, True) for topic in others}
        routes = {topic: await self._route(topic, make=make) for topic, make in made.items()}
        topics = {topic: queues_at(route) for topic, route in routes.items()}
        fixed: list[MessageQueue | None] = []
        for item in messages:
            fixed.append(self._fixed(routes[item.message.topic], item))
            if not len(fixed) % PER_TURN:
                await YieldToLoop()
        bound = bound_queue(fixed)
        try:
            names = brokers_of(topics, bound, at)
        except TopicNotFound:
            if absent := absent_brokers(routes.values(), bound or at):
                raise _Absent(absent, routes) from None
            raise
        topic = next(iter(routes), "")
        chosen: Sequence[str] = names
        if len(names) > 1:
            chosen = self._best(routes[topic], [name for name in names if name not in avoid]) or names
        with self._lock:
            self._turn += 1
            turn = self._turn
        name = chosen[turn % len(chosen)]
        queues = {each: here[name] for each, here in topics.items()}
        in_turn = {each: here[turn // len(chosen) % len(here)] for each, here in queues.items()}
        places = (place or in_turn[item.message.topic] for place, item in zip(fixed, messages, strict=True))
        parts = await divided(messages, places, self._options)
        await self._encode(parts, messages)
        has_others = len({*names} - {*avoid}) > 1
        return PlacedMessages(name, topic or (at.topic if at else ""), parts, has_others)

    async def _route(self, topic: str, *, make: bool) -> TopicRoute:
        find = partial(self._finder.find, topic, make=make)
        return self._finder.known(topic) or await LoopStep(self.client, find)

    def _fixed(self, route: TopicRoute, item: PendingMessage) -> MessageQueue | None:
        message = item.message
        if not message.body:
            check_body(message, route)
        if message.message_group is None and item.selector is None and not route.key_queues:
            return item.queue
        return self._choose(route, message, item.queue, item.selector)

    def _best(self, route: TopicRoute, names: Sequence[str]) -> Sequence[str]:
        health, now = self.client.connection.health, time.monotonic()
        addresses = {name: route.master_of(name) or "" for name in names}
        return choose_brokers(
            names,
            lambda name: self._options.fault_avoidance and health.trouble(addresses[name], now) is not None,
            lambda name: not addresses[name] or health.is_silent(addresses[name]),
            None,
        )

    async def _encode(self, parts: Sequence[Part], messages: Sequence[PendingMessage]) -> None:
        # Can raise any exception if the user has changed a message meanwhile.
        encode = partial(encode_batch, self._options.max_body_bytes, self._options.batch_compression, self.producer_id)
        with self._lock:
            first = self._next
            self._next += len(parts)
            if parts:
                self._open[first] = None
            oldest = next(iter(self._open), first)
        try:
            size = 0
            for number, part in enumerate(parts, first):
                chosen = [messages[index] for index in part.indices]
                part.sequence = number
                part.data = encode(chosen, part.message_group, BatchNumber(number, number - oldest))
                size += _BATCH_BYTES + part.size
                if size > _LARGE_BYTES:
                    size = 0
                    await YieldToLoop()
        except BaseException:
            self._forget(first)
            raise

    def settled(self, placed: PlacedMessages) -> None:
        """Record that messages have an outcome, or that the caller has stopped waiting for it."""
        if placed.parts:
            self._forget(placed.parts[0].sequence)

    def _forget(self, first: int) -> None:
        with self._lock:
            self._open.pop(first, None)

    # ---- on the event loop of the connection -----------------------------------------------------------

    async def _append(
        self, placed: PlacedMessages, source: Consumed | None, deadline: float
    ) -> Sequence[broker_pb2.AppendResult]:
        attempts: list[str] = []
        is_sent = in_doubt = False

        async def attempt(address: str, limit_s: float) -> Sequence[broker_pb2.AppendResult]:
            nonlocal is_sent
            is_sent = False
            until = time.monotonic() + limit_s
            progress = source.progress() if source is not None else None
            stream = await self._reach(address, limit_s)
            batches = [(self.queue_of(part), part.data) for part in placed.parts]
            is_sent = True
            append = partial(stream.append, broker_pb2.AtomicAppend(progress=progress), batches)
            result = await stream.answer(append, until - time.monotonic())
            if source is not None:
                source.answered(None)
            return result.batches

        def again(address: str, error: MinimqError) -> bool:
            nonlocal is_sent, in_doubt
            if source is not None and is_sent:
                source.answered(error)
            if isinstance(error, Closed):
                return False
            in_doubt |= is_sent and is_in_doubt(error)
            is_sent = False
            attempts.append(f"attempt {len(attempts) + 1}: {placed.broker_name} at {address or '?'}: {error.message}")
            if isinstance(error, Fenced):  # no attempt was stored: the broker checks for duplicates first
                return source is not None and source.may_pass()
            is_safe = placed.others and not in_doubt and time.monotonic() < deadline
            if is_safe and (error.retriable or error.refresh_route):
                raise _TryOtherBroker
            return _may_succeed(error, placed, len(attempts))

        master = RoutedMaster(self.client, placed.topic, placed.broker_name)
        try:
            results = await call_master(master, attempt, deadline - time.monotonic(), again=again)
        except MinimqError as error:
            if isinstance(error, Closed | Fenced) or not (error.retriable or in_doubt):
                raise
            raise _failed(error, attempts, placed.messages, in_doubt=in_doubt) from None
        return results if in_doubt else _stored_now(results, placed.broker_name)

    def queue_of(self, part: Part) -> MessageQueue:
        """Return the queue to which a batch goes now: that of the part, unless it was removed."""
        route = self.client.routes.known(part.queue.topic)
        return part.queue if route is None or not part.may_move else route.present(part.queue)

    async def _reach(self, address: str, limit_s: float) -> AtomicStream:
        # A new stream is opened only to a broker that answers a probe.
        if address not in self.streams:
            calls, timeout_s = self.client.connection.brokers, min(limit_s, self.client.timeout_s)
            await calls.call(address, lambda stub: stub.Probe, broker_pb2.ProbeRequest(), timeout_s)
        return self.streams[address]

    async def _look_again(self, topics: Collection[str]) -> None:
        await asyncio.sleep(PAUSE_S)
        for topic in topics:
            with suppress(MinimqError):  # the next attempt reports it
                await self.client.connection.routes.refresh(topic, self.client.timeout_s)


def _check_size(parts: Sequence[Part]) -> None:
    if len(parts) > MAX_ATOMIC_BATCHES:
        raise InvalidArgument(
            f"the transaction has {len(parts):,} batches for different queues or message groups, the limit is "
            f"{MAX_ATOMIC_BATCHES:,}: divide it"
        )
    size = sum(len(part.data) for part in parts)
    if size > MAX_ATOMIC_BYTES - (len(parts) + 1) * 1024:
        raise InvalidArgument(
            f"the transaction has {size:,} bytes, the limit is {MAX_ATOMIC_BYTES:,}: divide it, or compress it "
            '(compression="zstd")'
        )


def _stored_now(results: Sequence[broker_pb2.AppendResult], broker_name: str) -> Sequence[broker_pb2.AppendResult]:
    if any(each.status == broker_pb2.SEND_STATUS_ALREADY_STORED for each in results):
        raise number_taken(broker_name)
    return results


def _may_succeed(error: MinimqError, placed: PlacedMessages, attempts: int) -> bool:
    if isinstance(error, RejectedByProxy):
        return attempts < MAX_PROXY_ATTEMPTS
    if isinstance(error, QueueNotFound):
        return placed.may_move
    return error.retriable and not isinstance(error, StaleSequence)


def _failed(error: MinimqError, attempts: Sequence[str], count: int, *, in_doubt: bool) -> SendFailed:
    outcome = "it may be stored, as a whole" if in_doubt else "nothing of it is stored"
    return SendFailed(
        f"the transaction is not acknowledged, and {outcome}: {error.message}",
        tuple(attempts),
        may_be_stored=count * in_doubt,
        not_stored=count * (not in_doubt),
    )


def _receipts(placed: PlacedMessages, answers: Sequence[broker_pb2.AppendResult], producer_id: int) -> StoredBatches:
    if len(answers) != len(placed.parts):
        raise InternalError(f"broker {placed.broker_name} answered about other batches")
    found = []
    for part, answer in zip(placed.parts, answers, strict=True):
        queue = MessageQueue(part.queue.topic, part.queue.broker_name, answer.queue_id)
        status = STATUSES.get(answer.status, SendStatus.SEND_OK)
        batch = BatchReceipt(
            queue, answer.base_offset, answer.store_timestamp_ms, len(part.indices), producer_id, part.sequence, status
        )
        found.append((part.indices, batch))
    return found
