"""Commits the transactions of a producer: one atomic append each, tried until its outcome is known."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from minimq.connection.client import ClusterClient
from minimq.sending.atomic_stream import AtomicStream
from minimq.sending.key_queues import check_body
from minimq.sending.pending_batch import BatchNumber
from minimq.sending.placed_transaction import EncodedPart, PlacedTransaction, transaction_receipts
from minimq.sending.placement import (
    QueuesAt,
    TransactionMessage,
    TransactionPart,
    absent_brokers,
    bound_queue,
    brokers_of,
    healthy,
    parts_of,
    queues_at,
)
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import SendReceipt
from minimq.sending.retry import GiveUp, next_step, try_timeout_s
from minimq.sending.selectors import Selector
from minimq.sending.transaction_counters import TransactionCounters
from minimq.sending.transaction_input import TransactionInput
from minimq_common.batch_builder import BatchBuilder
from minimq_common.errors import (
    Closed,
    Fenced,
    InternalError,
    InvalidArgument,
    MiniMQError,
    NotEnoughReplicas,
    NotMaster,
    SendFailed,
    StaleSequence,
    TopicNotFound,
    Unavailable,
)
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.protocol_bounds import MAX_ATOMIC_BATCHES, MAX_ATOMIC_BYTES
from minimq_common.single_batch import encode_single
from minimq_proto.v1 import broker_pb2

#: Answers of a broker after which the transaction may be stored all the same; as when there is no answer.
_IN_DOUBT = (NotMaster, NotEnoughReplicas, InternalError, StaleSequence)
#: Delay before a transaction is tried again whose lease is about to be renewed, in seconds.
_RENEWED_S = 0.2
#: Delay before name servers are asked again for brokers without a master, in seconds.
_AGAIN_S = 0.2


class LoopStep(NamedTuple):
    """The next coroutine of a transaction, and the client on whose event loop it is to run."""

    client: ClusterClient
    make: Callable[[], Coroutine[Any, Any, Any]]


#: Called with the result, or with the error.
StepOutcome = Callable[[Any, BaseException | None], object]


class _Elsewhere(Exception):
    """A broker has refused a transaction, and another one may take it."""

    def __init__(self, error: MiniMQError) -> None:
        self.error = error


class _Absent(Exception):
    """No broker can take a transaction now, and one that has no master may take it once it has one."""

    def __init__(self, brokers: Sequence[str], topics: Collection[str]) -> None:
        names = ", ".join(brokers)
        self.error = Unavailable(f"no broker that is there takes all of it, and {names} has no master now: start it")
        self.topics = topics


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
        self._producer_id = random.getrandbits(64) or 1
        self._lock = threading.Lock()  # protects the numbers
        self._next = 0
        #: The first number of each transaction whose outcome is not known, ascending.
        self._open: dict[int, None] = {}
        self._turn = random.randrange(1 << 16)
        #: By topic, and of which route.
        self._known_queues: dict[str, tuple[TopicRoute, QueuesAt]] = {}
        #: Work for the event loop that it has not taken; and whether it was woken for that.
        self._handed_in: deque[tuple[Callable[[], Coroutine[Any, Any, Any]], StepOutcome]] = deque()
        self._is_woken = False
        self._tasks: set[asyncio.Task[Any]] = set()
        #: By address; on the event loop of the connection.
        self._streams: dict[str, AtomicStream] = {}

    # ---- by the caller ------------------------------------------------------------------------------

    def knows(self, topic: str) -> bool:
        """Tell whether the route of a topic is known."""
        return self._client.routes.known(topic) is not None

    def commit(
        self, messages: Sequence[TransactionMessage], source: TransactionInput[Any] | None
    ) -> Generator[LoopStep, Any, list[SendReceipt]]:
        """Commit a transaction: yield what event loops are to run, and return the receipts."""
        consumed = source.queue if source is not None else None
        if not messages and consumed is None:
            return []
        deadline = time.monotonic() + self._options.send_timeout_s
        avoid: set[str] = set()
        while True:
            try:
                placed = self._place(messages, consumed, avoid)
            except _Absent as absent:
                if time.monotonic() >= deadline:
                    raise _failed(absent.error, (), in_doubt=False) from None
                yield LoopStep(self._client, partial(self._look_again, absent.topics))
                continue
            try:
                append = partial(self._append, placed, source if consumed is not None else None, deadline)
                answers = yield LoopStep(self._client, append)
                return transaction_receipts(messages, placed, answers, self._producer_id)
            except _Elsewhere:
                avoid.add(placed.broker_name)
            finally:
                self._settled(placed)

    def _place(
        self, messages: Sequence[TransactionMessage], consumed: MessageQueue | None, avoid: Collection[str]
    ) -> PlacedTransaction:
        fifo = {item.message.topic for item in messages if item.message.message_group is not None}
        routes = {
            topic: self._find(topic, make=topic not in fifo)
            for topic in dict.fromkeys([item.message.topic for item in messages])
        }
        topics = {topic: self._queues_at(route) for topic, route in routes.items()}
        fixed = [self._fixed(routes[item.message.topic], item) for item in messages]
        bound = bound_queue(fixed)
        try:
            names = brokers_of(topics, bound, consumed)
        except TopicNotFound:
            if absent := absent_brokers(routes.values(), bound or consumed):
                raise _Absent(absent, routes) from None
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
        limits = self._options.batch_messages, self._options.batch_bytes
        parts = parts_of(messages, fixed, in_turn, limits)
        if len(parts) > MAX_ATOMIC_BATCHES:
            raise InvalidArgument(
                f"the transaction has {len(parts):,} batches for different queues or message groups, the limit is "
                f"{MAX_ATOMIC_BATCHES:,}: divide it"
            )
        others = len(names) > 1 and len({*names} - {*avoid}) > 1
        return PlacedTransaction(
            name, topic or (consumed.topic if consumed else ""), self._encoded(parts, messages), others
        )

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

    def _encoded(self, parts: Sequence[TransactionPart], messages: Sequence[TransactionMessage]) -> list[EncodedPart]:
        with self._lock:
            first = self._next
            self._next += len(parts)
            if parts:
                self._open[first] = None
            oldest = next(iter(self._open), first)
        try:
            encoded = [
                EncodedPart(part, self._encode(part, messages, BatchNumber(number, number - oldest)), number)
                for number, part in enumerate(parts, first)
            ]
            size = sum(len(each.data) for each in encoded)
            if size > MAX_ATOMIC_BYTES - (len(encoded) + 1) * 1024:
                raise InvalidArgument(
                    f"the transaction has {size:,} bytes, the limit is {MAX_ATOMIC_BYTES:,}: divide it, or compress it "
                    '(compression="zstd")'
                )
        except BaseException:
            self._forget(first)
            raise
        return encoded

    def _encode(self, part: TransactionPart, messages: Sequence[TransactionMessage], number: BatchNumber) -> bytes:
        options = self._options
        items = [messages[index] for index in part.indices]
        if len(items) == 1 and part.message_group is None and options.batch_compression is None:
            item = items[0]
            single = encode_single(item.message, options.max_body_bytes, item.born_ms, self._producer_id, *number)
            if single is not None:
                return single
        builder = BatchBuilder(options.max_body_bytes, options.batch_compression, part.message_group)
        builder.add([item.message for item in items])
        return builder.build([item.born_ms for item in items], self._producer_id, *number)

    def _settled(self, placed: PlacedTransaction) -> None:
        if placed.parts:
            self._forget(placed.parts[0].sequence)

    def _forget(self, first: int) -> None:
        with self._lock:
            self._open.pop(first, None)

    def begin(self, step: LoopStep, told: StepOutcome) -> bool:
        """Have the event loop run a step of a commit, and tell the result or the error; any number at one wake-up.

        Returns False for a step that is not of this connection, which is not begun.
        """
        if step.client is not self._client:
            return False
        self._client.check_open()
        self._handed_in.append((step.make, told))
        if not self._is_woken:
            self._is_woken = True
            if not self._client.connection.call_soon(self._begin):
                raise Closed("the producer was closed")
        return True

    # ---- on the event loop of the connection -----------------------------------------------------------

    def _begin(self) -> None:
        self._is_woken = False  # first: whoever adds something from here on wakes the loop again
        for _ in range(len(self._handed_in)):
            make, told = self._handed_in.popleft()
            task = asyncio.create_task(make())
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, told))

    def _ended(self, told: StepOutcome, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            told(None, Closed("the producer was closed before the transaction was acknowledged: it may be stored"))
        elif (error := task.exception()) is not None:
            told(None, error)
        else:
            told(task.result(), None)

    async def _append(
        self, placed: PlacedTransaction, source: TransactionInput[Any] | None, deadline: float
    ) -> Sequence[broker_pb2.AppendResult]:
        tries: list[str] = []
        in_doubt = False
        while True:
            sent = False
            address = ""
            try:
                address = await self._address(placed)
                progress = source.progress() if source is not None else None
                timeout_s = try_timeout_s(time.monotonic(), deadline, len(tries))
                stream = await self._stream(address, timeout_s)
                sent = True
                batches = [(each.part.queue, each.data) for each in placed.parts]
                result = await stream.append(batches, progress, timeout_s)
            except MiniMQError as failure:
                error = failure
                if address:
                    self._client.connection.health.failed(address, error)
            else:
                if source is not None:
                    source.answered(None)
                return result.batches
            if source is not None and sent:
                source.answered(error)
            if isinstance(error, Closed):
                raise error
            in_doubt = in_doubt or (sent and (not error.answered or isinstance(error, _IN_DOUBT)))
            tries.append(f"try {len(tries) + 1}: {placed.broker_name} at {address or '?'}: {error.message}")
            await asyncio.sleep(self._pause_s(error, placed, source, deadline, tries, in_doubt=in_doubt))
            if error.refresh_route:
                await self._refresh(placed.topic)

    def _pause_s(
        self,
        error: MiniMQError,
        placed: PlacedTransaction,
        source: TransactionInput[Any] | None,
        deadline: float,
        tries: Sequence[str],
        *,
        in_doubt: bool,
    ) -> float:
        now = time.monotonic()
        if isinstance(error, Fenced):
            if source is not None and source.may_pass() and now + _RENEWED_S < deadline:
                return _RENEWED_S
            raise error  # an earlier try that was stored would have been found
        if isinstance(error, StaleSequence):
            raise _failed(error, tries, in_doubt=True)
        step = next_step(
            error, tries=len(tries), now=now, deadline=deadline, bound=not placed.others, elsewhere=placed.others
        )
        if isinstance(step, GiveUp):
            if step.hopeless and not in_doubt:
                raise error
            raise _failed(error, tries, in_doubt=in_doubt)
        if placed.others and not in_doubt:
            raise _Elsewhere(error)
        return step.delay_s

    async def _address(self, placed: PlacedTransaction) -> str:
        route = await self._client.routes.find(placed.topic)
        address = route.master_of(placed.broker_name)
        if address is None:
            raise Unavailable(f"no name server knows a master of broker {placed.broker_name}")
        return address

    async def _stream(self, address: str, timeout_s: float) -> AtomicStream:
        stream = self._streams.get(address)
        if stream is None or stream.ended:
            calls = self._client.connection.brokers
            await calls.call(address, lambda stub: stub.Probe, broker_pb2.ProbeRequest(), timeout_s, 0)
            stream = self._streams.get(address)  # of another transaction, meanwhile
            if stream is None or stream.ended:
                stream = self._streams[address] = AtomicStream(self._client.connection, address)
        return stream

    async def _look_again(self, topics: Collection[str]) -> None:
        await asyncio.sleep(_AGAIN_S)
        for topic in topics:
            await self._refresh(topic)

    async def _refresh(self, topic: str) -> None:
        with suppress(MiniMQError):  # the next try tells
            await self._client.connection.routes.refresh(topic, self._client.timeout_s)

    def close(self) -> None:
        """End all streams."""
        self._client.connection.call_soon(self._close)

    def _close(self) -> None:
        for stream in self._streams.values():
            stream.fail(Closed("the producer was closed before the transaction was acknowledged: it may be stored"))
        self._streams.clear()


def _failed(error: MiniMQError, tries: Sequence[str], *, in_doubt: bool) -> SendFailed:
    outcome = "it may be stored, as a whole" if in_doubt else "nothing of it is stored"
    return SendFailed(f"the transaction is not acknowledged, and {outcome}: {error.message}", tuple(tries))
