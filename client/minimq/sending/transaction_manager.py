"""Commits the transactions of a producer, each by one atomic append, which is retried until its outcome is known.

A transaction has three parts: its topics are found on the event loop of the connection; its messages get their queues,
which may need selectors, and are encoded by the caller; and the batches are sent, on the loop again.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from minimq.arguments import check_message_type
from minimq.connection.broker_troubles import choose_brokers
from minimq.connection.client import ClusterClient
from minimq.connection.retry_schedule import PAUSE_S
from minimq.sending.append_stream import AtomicStream, StreamsByAddress
from minimq.sending.atomic_append import AtomicAppend, Consumed, TryOtherBroker, not_acknowledged
from minimq.sending.chosen_queues import check_body
from minimq.sending.interceptor import Interceptors
from minimq.sending.pending_batch import BatchNumber, PendingMessage, encode_batch, new_producer_id
from minimq.sending.placement import (
    EncodedMessages,
    Part,
    PlacedMessages,
    absent_brokers,
    bound_queue,
    brokers_of,
    divided,
    queues_at,
    topics_of,
)
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import STATUSES, BatchReceipt, SendReceipt, SendStatus
from minimq.sending.selectors import Selector
from minimq.sending.statistics import NO_TRANSACTIONS, TransactionTotals
from minimq.sending.topic_finder import TopicFinder
from minimq_common.batch.single import check_message
from minimq_common.errors import InternalError, InvalidArgument, MinimqError, TopicNotFound, Unavailable
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.names import check_topic
from minimq_common.wire.protocol_bounds import MAX_ATOMIC_BATCHES, MAX_ATOMIC_BYTES
from minimq_proto.v1 import broker_pb2

#: The caller of an asyncio producer encodes more messages than this on a thread.
_MANY = 1000


T = TypeVar("T")
#: Sends encoded messages, on the event loop of the connection.
Append = Callable[[EncodedMessages], Coroutine[Any, Any, T]]
#: The receipts of batches, with the indices of their messages in the transaction.
StoredBatches = Sequence[tuple[Sequence[int], BatchReceipt]]


def receipts_of(batches: StoredBatches) -> dict[int, SendReceipt]:
    """Return the receipt of each message, by its index in the transaction."""
    return {index: SendReceipt(batch, place) for indices, batch in batches for place, index in enumerate(indices)}


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
        self._lock = threading.Lock()  # protects `totals`, `_next` and `_open`
        self._next = 0
        #: Transactions that may still be sent, by their first sequence numbers. One that is dropped is over.
        self._open: WeakValueDictionary[int, EncodedMessages] = WeakValueDictionary()
        # Used on the event loop of the connection.
        self._turn = random.randrange(1 << 16)
        self.streams = StreamsByAddress(client.connection, AtomicStream)

    def count(self, *, committed: int = 0, rolled_back: int = 0, failed: int = 0, messages: int = 0) -> None:
        with self._lock:
            more = (committed, rolled_back, failed, messages)
            self.totals = TransactionTotals(*map(int.__add__, self.totals, more))

    def commit(self, messages: Sequence[PendingMessage], source: Consumed | None) -> StoredBatches:
        """Commit a transaction; return the receipts of its batches. Blocks."""
        return self.store(messages, (), partial(self.append, source))

    async def commit_async(self, messages: Sequence[PendingMessage], source: Consumed | None) -> StoredBatches:
        """Like `commit`, for a task of a user's loop."""
        return await self.store_async(messages, (), partial(self.append, source))

    def store(self, messages: Sequence[PendingMessage], others: Collection[str], append: Append[T]) -> T:
        """Encode messages for a broker that carries their topics and `others`; return the result of `append`."""
        topics = topics_of(messages, others)
        routes = self.known(topics) or self.client.wait(lambda: self.find(topics))
        encoded = self.encode(messages, topics, routes)
        return self.client.wait(lambda: append(encoded))

    async def store_async(self, messages: Sequence[PendingMessage], others: Collection[str], append: Append[T]) -> T:
        """Like `store`, for a task of a user's loop; encodes many messages on a thread, so as not to block the loop."""
        topics = topics_of(messages, others)
        routes = self.known(topics) or await self.client.result(lambda: self.find(topics))
        encode = partial(self.encode, messages, topics, routes)
        encoded = encode() if len(messages) <= _MANY else await asyncio.to_thread(encode)
        await asyncio.sleep(0)  # a task that was cancelled while it encoded sends nothing
        return await self.client.result(lambda: append(encoded))

    def notify(self, messages: Sequence[PendingMessage], batches: StoredBatches) -> None:
        """Notify the interceptors of stored messages."""
        for index, receipt in receipts_of(batches).items() if self.interceptors else ():
            self.interceptors.after_send(messages[index].message, receipt, None)

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

    def encode(
        self, messages: Sequence[PendingMessage], topics: Mapping[str, bool], routes: Mapping[str, TopicRoute]
    ) -> EncodedMessages:
        """Choose the queues of messages as far as selectors, keys and groups do, and encode them.

        Can raise any exception if the user has changed a message meanwhile.
        """
        fixed = [self._fixed(routes[item.message.topic], item) for item in messages]
        encoded = EncodedMessages(divided(messages, fixed, self._options), topics, bound_queue(fixed), len(messages))
        encode = partial(encode_batch, self._options.max_body_bytes, self._options.batch_compression, self.producer_id)
        with self._lock:
            first = self._next
            self._next += len(encoded.parts)
            if encoded.parts:
                self._open[first] = encoded
            oldest = min(self._open, default=first)
        for number, part in enumerate(encoded.parts, first):
            chosen = [messages[index] for index in part.indices]
            part.sequence = number
            part.data = encode(chosen, part.message_group, BatchNumber(number, number - oldest))
        return encoded

    def known(self, topics: Collection[str]) -> dict[str, TopicRoute]:
        """Return the routes of topics; nothing if one of them is not known yet."""
        found = {topic: route for topic in topics if (route := self._finder.known(topic)) is not None}
        return found if len(found) == len(topics) else {}

    def _fixed(self, route: TopicRoute, item: PendingMessage) -> MessageQueue | None:
        message = item.message
        if not message.body:
            check_body(message, route)
        if message.message_group is None and item.selector is None and not route.key_queues:
            return item.queue
        return self._choose(route, message, item.queue, item.selector)

    def settled(self, encoded: EncodedMessages) -> None:
        """Record that messages will not be sent again."""
        if encoded.parts:
            with self._lock:
                self._open.pop(encoded.parts[0].sequence, None)

    # ---- on the event loop of the connection -----------------------------------------------------------

    async def find(self, topics: Mapping[str, bool]) -> dict[str, TopicRoute]:
        """Return the routes of topics; those with True may be created automatically."""
        return {topic: await self._finder.find(topic, make=make) for topic, make in topics.items()}

    async def append(self, source: Consumed | None, encoded: EncodedMessages) -> StoredBatches:
        """Store the messages, and commit what `source` has consumed, at one broker."""
        deadline = time.monotonic() + self._options.send_timeout_s
        at = source.queue if source is not None else None
        if not encoded.parts and at is None:
            return []
        avoid: set[str] = set()
        try:
            _check_size(encoded.parts)
            while True:
                placed = await self.place(encoded, at, avoid, deadline)
                attempts = AtomicAppend(self.client, self.streams, placed, source if at is not None else None, deadline)
                try:
                    return _receipts(placed, await attempts.run(), self.producer_id)
                except TryOtherBroker:
                    avoid.add(placed.broker_name)
        finally:
            self.settled(encoded)

    async def place(
        self, encoded: EncodedMessages, at: MessageQueue | None, avoid: Collection[str], deadline: float
    ) -> PlacedMessages:
        """Choose a broker that carries all topics, and its queues. Waits until the deadline for one that is offline."""
        routes, names = await self._brokers(encoded, at, deadline)
        first = next(iter(routes), "")
        chosen: Sequence[str] = names
        if len(names) > 1:
            chosen = self._best(routes[first], [name for name in names if name not in avoid]) or names
        self._turn += 1
        name, turn = chosen[self._turn % len(chosen)], self._turn // len(chosen)
        here = {topic: queues_at(route)[name] for topic, route in routes.items()}
        parts = [(part.queue or here[part.topic][turn % len(here[part.topic])], part) for part in encoded.parts]
        topic = first or (at.topic if at is not None else "")
        return PlacedMessages(name, topic, parts, encoded.messages, len({*names} - {*avoid}) > 1)

    async def _brokers(
        self, encoded: EncodedMessages, at: MessageQueue | None, deadline: float
    ) -> tuple[Mapping[str, TopicRoute], Sequence[str]]:
        while True:
            routes = await self.find(encoded.topics)
            try:
                queues = {topic: queues_at(route) for topic, route in routes.items()}
                return routes, brokers_of(queues, encoded.bound, at)
            except TopicNotFound:
                absent = absent_brokers(routes.values(), encoded.bound or at)
                if not absent:
                    raise
                if time.monotonic() >= deadline:
                    text = f"no available broker has all its topics and queues: start {' and '.join(absent)}"
                    raise not_acknowledged(Unavailable(text), (), encoded.messages, in_doubt=False) from None
            await asyncio.sleep(PAUSE_S)
            for topic in routes:
                with suppress(MinimqError):  # the next round reports it
                    await self.client.connection.routes.refresh(topic, self.client.timeout_s)

    def _best(self, route: TopicRoute, names: Sequence[str]) -> Sequence[str]:
        health, now = self.client.connection.health, time.monotonic()
        addresses = {name: route.master_of(name) or "" for name in names}
        return choose_brokers(
            names,
            lambda name: self._options.fault_avoidance and health.trouble(addresses[name], now) is not None,
            lambda name: not addresses[name] or health.is_silent(addresses[name]),
            None,
        )


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


def _receipts(placed: PlacedMessages, answers: Sequence[broker_pb2.AppendResult], producer_id: int) -> StoredBatches:
    if len(answers) != len(placed.parts):
        raise InternalError(f"broker {placed.broker_name} answered about other batches")
    found = []
    for (queue, part), answer in zip(placed.parts, answers, strict=True):
        stored_in = MessageQueue(queue.topic, queue.broker_name, answer.queue_id)
        status = STATUSES.get(answer.status, SendStatus.SEND_OK)
        batch = BatchReceipt(
            stored_in,
            answer.base_offset,
            answer.store_timestamp_ms,
            len(part.indices),
            producer_id,
            part.sequence,
            status,
        )
        found.append((part.indices, batch))
    return found
