"""Commits the transactions of a producer: one atomic append each, tried until its outcome is known."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from minimq.connection.at_master import RoutedMaster, at_master
from minimq.connection.client import ClusterClient
from minimq.connection.loop_calls import LoopStep, Steps
from minimq.sending.batch_encoder import Batcher, Part
from minimq.sending.chosen_queues import check_body
from minimq.sending.pending_batch import IN_DOUBT, BatchNumber
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt, SendReceipt, SendStatus
from minimq.sending.selectors import Selector
from minimq.sending.statistics import NO_TRANSACTIONS, TransactionTotals
from minimq.sending.transactions.atomic_stream import AtomicStream
from minimq.sending.transactions.placement import (
    QueuesAt,
    TransactionMessage,
    absent_brokers,
    bound_queue,
    brokers_of,
    healthy,
    queues_at,
)
from minimq.sending.transactions.transaction_input import Consumed
from minimq_common.errors import (
    Closed,
    Fenced,
    InvalidArgument,
    MiniMQError,
    SendFailed,
    StaleSequence,
    TopicNotFound,
    Unavailable,
)
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.wire.protocol_bounds import MAX_ATOMIC_BATCHES, MAX_ATOMIC_BYTES
from minimq_proto.v1 import broker_pb2

#: Answers of a broker after which the transaction may be stored all the same; as when there is no answer.
_IN_DOUBT = (*IN_DOUBT, StaleSequence)
#: Delay before name servers are asked again for brokers without a master, in seconds.
_AGAIN_S = 0.2


def is_in_doubt(error: MiniMQError) -> bool:
    """Tell whether a request that has failed so may be stored all the same."""
    return not error.answered or isinstance(error, _IN_DOUBT)


class TransactionCounters:
    """Counts the transactions of one producer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = NO_TRANSACTIONS

    def add(self, *, committed: int = 0, rolled_back: int = 0, failed: int = 0, messages: int = 0) -> None:
        """Count transactions that have ended."""
        with self._lock:
            more = (committed, rolled_back, failed, messages)
            self._totals = TransactionTotals(*map(int.__add__, self._totals, more))

    @property
    def totals(self) -> TransactionTotals:
        """All so far."""
        return self._totals


class EncodedPart(NamedTuple):
    """A batch of a transaction, encoded under its number."""

    part: Part
    data: bytes
    sequence: int


class PlacedMessages(NamedTuple):
    """Messages of a transaction on their way to one broker."""

    broker_name: str
    topic: str
    parts: Sequence[EncodedPart]
    others: bool


class _Elsewhere(Exception):
    """A broker has refused a transaction, and another one may take it."""


class Absent(Exception):
    """No broker can take a transaction now, and one that has no master may take it once it has one."""

    def __init__(self, brokers: Sequence[str], topics: Collection[str]) -> None:
        names = ", ".join(brokers)
        self.error = Unavailable(f"no broker that is there takes all of it, and {names} has no master now: start it")
        self.topics = topics


class _Append:
    """The tries of one transaction at one broker, and whether it may be stored there."""

    def __init__(self, placed: PlacedMessages, source: Consumed | None, deadline: float) -> None:
        self.placed, self.source, self.deadline = placed, source, deadline
        self.is_sent = False
        self._in_doubt = False
        self._tries: list[str] = []

    def again(self, address: str, error: MiniMQError) -> bool:
        """Note a try that has failed, and tell whether there is another one. Raises `_Elsewhere`."""
        if self.source is not None and self.is_sent:
            self.source.answered(error)
        if isinstance(error, Closed):
            return False
        self._in_doubt |= self.is_sent and is_in_doubt(error)
        self.is_sent = False
        placed = self.placed
        self._tries.append(f"try {len(self._tries) + 1}: {placed.broker_name} at {address or '?'}: {error.message}")
        if isinstance(error, Fenced):  # an earlier try that was stored would have been found
            return self.source is not None and self.source.may_pass()
        is_safe = placed.others and not self._in_doubt and time.monotonic() < self.deadline
        if is_safe and (error.retriable or error.refresh_route):
            raise _Elsewhere
        return error.retriable and not isinstance(error, StaleSequence)

    def outcome(self, error: MiniMQError) -> MiniMQError:
        """Return the error of the transaction."""
        if isinstance(error, Closed | Fenced) or not (error.retriable or self._in_doubt):
            return error
        return _failed(error, self._tries, in_doubt=self._in_doubt)


class Transactor:
    """Commits the transactions of one producer. Thread-safe."""

    def __init__(
        self,
        client: ClusterClient,
        options: ProducerOptions,
        find: Callable[..., TopicRoute],
        choose: Callable[[TopicRoute, Message, MessageQueue | None, Selector | None], MessageQueue | None],
    ) -> None:
        self._client = client
        self._options = options
        self._find = find
        self._choose = choose
        self.counters = TransactionCounters()
        self._batcher = Batcher(options)
        self.producer_id = self._batcher.producer_id
        self._lock = threading.Lock()  # protects the numbers
        self._next = 0
        #: The first number of each transaction whose outcome is not known, ascending.
        self._open: dict[int, None] = {}
        self._turn = random.randrange(1 << 16)
        #: By topic, and of which route.
        self._known_queues: dict[str, tuple[TopicRoute, QueuesAt]] = {}
        #: By address; on the event loop of the connection.
        self._streams: dict[str, AtomicStream] = {}

    # ---- by the caller ------------------------------------------------------------------------------

    def knows(self, topic: str) -> bool:
        """Tell whether the route of a topic is known."""
        return self._client.routes.known(topic) is not None

    def commit(self, messages: Sequence[TransactionMessage], source: Consumed | None) -> Steps[list[SendReceipt]]:
        """Commit a transaction: yield what event loops are to run, and return the receipts."""
        consumed = source.queue if source is not None else None
        if not messages and consumed is None:
            return []
        deadline = time.monotonic() + self._options.send_timeout_s
        avoid: set[str] = set()
        while True:
            try:
                placed = self.place(messages, consumed, avoid)
            except Absent as absent:
                if time.monotonic() >= deadline:
                    raise _failed(absent.error, (), in_doubt=False) from None
                yield LoopStep(self._client, partial(self._look_again, absent.topics))
                continue
            try:
                _check_size(placed.parts)
                append = _Append(placed, source if consumed is not None else None, deadline)
                answers = yield LoopStep(self._client, partial(self._append, append))
                return _receipts(messages, placed, answers, self.producer_id)
            except _Elsewhere:
                avoid.add(placed.broker_name)
            finally:
                self.settled(placed)

    def place(
        self,
        messages: Sequence[TransactionMessage],
        at: MessageQueue | None,
        avoid: Collection[str],
        others: Collection[str] = (),
    ) -> PlacedMessages:
        """Choose the broker of messages, and encode them: that of a queue if given, or one that has other topics, too.

        Raises `TopicNotFound` when there is none, and `Absent`; `settled` follows.
        """
        fifo = {item.message.topic for item in messages if item.message.message_group is not None}
        wanted = dict.fromkeys([*(item.message.topic for item in messages), *others])
        routes = {topic: self._find(topic, make=topic not in fifo) for topic in wanted}
        topics = {topic: self._queues_at(route) for topic, route in routes.items()}
        fixed = [self._fixed(routes[item.message.topic], item) for item in messages]
        bound = bound_queue(fixed)
        try:
            names = brokers_of(topics, bound, at)
        except TopicNotFound:
            if absent := absent_brokers(routes.values(), bound or at):
                raise Absent(absent, routes) from None
            raise
        topic = next(iter(routes), "")
        chosen = names
        if len(names) > 1:
            chosen = healthy(names, partial(self._is_silent, routes[topic]), avoid) or names
        with self._lock:
            self._turn += 1
            turn = self._turn
        name = chosen[turn % len(chosen)]
        queues = {each: here[name] for each, here in topics.items()}
        in_turn = {each: here[turn // len(chosen) % len(here)] for each, here in queues.items()}
        places = [place or in_turn[item.message.topic] for place, item in zip(fixed, messages, strict=True)]
        parts = self._encoded(self._batcher.parts(messages, places), messages)
        has_others = len(names) > 1 and len({*names} - {*avoid}) > 1
        return PlacedMessages(name, topic or (at.topic if at else ""), parts, has_others)

    def _queues_at(self, route: TopicRoute) -> QueuesAt:
        known = self._known_queues.get(route.topic)
        if known is None or known[0] is not route:
            known = self._known_queues[route.topic] = route, queues_at(route)
        return known[1]

    def _fixed(self, route: TopicRoute, item: TransactionMessage) -> MessageQueue | None:
        message = item.message
        if not message.body:
            check_body(message, route)
        if message.message_group is None and item.selector is None and not route.key_queues:
            return item.queue
        return self._choose(route, message, item.queue, item.selector)

    def _is_silent(self, route: TopicRoute, broker_name: str) -> bool:
        address = route.master_of(broker_name)
        return address is None or self._client.connection.health.is_silent(address)

    def _encoded(self, parts: Sequence[Part], messages: Sequence[TransactionMessage]) -> list[EncodedPart]:
        with self._lock:
            first = self._next
            self._next += len(parts)
            if parts:
                self._open[first] = None
            oldest = next(iter(self._open), first)
        try:
            return [
                EncodedPart(part, self._batcher.encode(part, messages, BatchNumber(number, number - oldest)), number)
                for number, part in enumerate(parts, first)
            ]
        except BaseException:
            self._forget(first)
            raise

    def settled(self, placed: PlacedMessages) -> None:
        """Note that the outcome of messages is known, or nobody waits for it any more."""
        if placed.parts:
            self._forget(placed.parts[0].sequence)

    def _forget(self, first: int) -> None:
        with self._lock:
            self._open.pop(first, None)

    # ---- on the event loop of the connection -----------------------------------------------------------

    async def _append(self, append: _Append) -> Sequence[broker_pb2.AppendResult]:
        placed, source = append.placed, append.source
        batches = [(each.part.queue, each.data) for each in placed.parts]

        async def attempt(address: str) -> Sequence[broker_pb2.AppendResult]:
            append.is_sent = False
            progress = source.progress() if source is not None else None
            stream = await self.stream(address)
            append.is_sent = True
            result = await stream.append(batches, progress)
            if source is not None:
                source.answered(None)
            return result.batches

        master = RoutedMaster(self._client, placed.topic, placed.broker_name)
        try:
            return await at_master(master, attempt, append.deadline - time.monotonic(), again=append.again)
        except MiniMQError as error:
            raise append.outcome(error) from None

    async def stream(self, address: str) -> AtomicStream:
        """Return the stream to a broker, once that is known to answer."""
        stream = self._streams.get(address)
        if stream is None or stream.ended:
            calls = self._client.connection.brokers
            await calls.call(address, lambda stub: stub.Probe, broker_pb2.ProbeRequest(), self._client.timeout_s)
            stream = self._streams.get(address)  # of another transaction, meanwhile
            if stream is None or stream.ended:
                stream = self._streams[address] = AtomicStream(self._client.connection, address)
        return stream

    async def _look_again(self, topics: Collection[str]) -> None:
        await asyncio.sleep(_AGAIN_S)
        for topic in topics:
            with suppress(MiniMQError):  # the next try tells
                await self._client.connection.routes.refresh(topic, self._client.timeout_s)

    def close(self) -> None:
        """End all streams."""
        self._client.connection.call_soon(self._close)

    def _close(self) -> None:
        for stream in self._streams.values():
            stream.fail(Closed("the producer was closed before the transaction was acknowledged: it may be stored"))
        self._streams.clear()


def _check_size(parts: Sequence[EncodedPart]) -> None:
    if len(parts) > MAX_ATOMIC_BATCHES:
        raise InvalidArgument(
            f"the transaction has {len(parts):,} batches for different queues or message groups, the limit is "
            f"{MAX_ATOMIC_BATCHES:,}: divide it"
        )
    size = sum(len(each.data) for each in parts)
    if size > MAX_ATOMIC_BYTES - (len(parts) + 1) * 1024:
        raise InvalidArgument(
            f"the transaction has {size:,} bytes, the limit is {MAX_ATOMIC_BYTES:,}: divide it, or compress it "
            '(compression="zstd")'
        )


def _failed(error: MiniMQError, tries: Sequence[str], *, in_doubt: bool) -> SendFailed:
    outcome = "it may be stored, as a whole" if in_doubt else "nothing of it is stored"
    return SendFailed(f"the transaction is not acknowledged, and {outcome}: {error.message}", tuple(tries))


def _receipts(
    messages: Sequence[TransactionMessage],
    placed: PlacedMessages,
    answers: Sequence[broker_pb2.AppendResult],
    producer_id: int,
) -> list[SendReceipt]:
    """Return a receipt for each message."""
    found: dict[int, SendReceipt] = {}
    for each, answer in zip(placed.parts, answers, strict=True):
        part = each.part
        queue = MessageQueue(part.queue.topic, part.queue.broker_name, answer.queue_id)
        status = SendStatus(answer.status)
        batch = BatchReceipt(
            queue,
            answer.base_offset,
            answer.store_timestamp_ms,
            len(part.indices),
            producer_id,
            each.sequence,
            status,
        )
        found |= {index: SendReceipt(batch, place) for place, index in enumerate(part.indices)}
    return [found[index] for index in range(len(messages))]
