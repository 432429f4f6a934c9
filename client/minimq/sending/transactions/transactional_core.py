"""The part that both faces of a transactional producer share."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from minimq.administration.end_stream import EndStream
from minimq.administration.resolutions import COMMIT, ROLLBACK
from minimq.arguments import check_message_type
from minimq.connection.at_master import RoutedMaster, answer_of, at_master
from minimq.connection.cluster import Cluster
from minimq.connection.loop_steps import LoopStep, Steps
from minimq.sending.append_stream import AppendStreams
from minimq.sending.batch_encoder import BatchEncoder, Batcher
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.pending_batch import BatchNumber, PendingMessage
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.selectors import Selector
from minimq.sending.transactions.check_back import AskUser, CheckBack
from minimq.sending.transactions.half_transaction import HalfTransaction
from minimq.transport.client_log import client_logger
from minimq_common.errors import InvalidArgument, MiniMQError, TopicNotFound
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.names import check_producer_group, check_topic
from minimq_proto.v1 import broker_pb2, halves_pb2

log = client_logger(__name__)

#: A broker at which the first message of a transaction failed is not the first choice for so long, in seconds.
_AVOID_S = 10.0
#: To encode that much takes long.
_LARGE_BYTES = 1 << 17


class _HalfBatch(NamedTuple):
    """A batch of half messages that is ready to be sent."""

    queue: MessageQueue
    data: bytes
    #: What interceptors have made of the messages; empty if there are none.
    seen: Sequence[PendingMessage] = ()


class TransactionalCore:
    """Places transactions, encodes their messages, sends and ends them. Thread-safe."""

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        group: str,
        options: ProducerOptions,
        ask: AskUser,
        interceptors: Sequence[SendInterceptor],
    ) -> None:
        self.group = check_producer_group(group)
        self._options = options
        self._core = ProducerCore(nameserver, options, interceptors)
        self._client = self._core.client
        self._batcher = Batcher(options, BatchEncoder(options))
        self._sequences = itertools.count()
        self._turns = itertools.count(random.randrange(1 << 16))
        #: Until when brokers are not the first choice.
        self._avoid: dict[str, float] = {}
        self._append_streams = AppendStreams(self._client.connection)
        self._end_streams: dict[str, EndStream] = {}  # of the event loop
        self._checks = CheckBack(self._client, group, self._batcher.producer_id, ask, self._end)

    # ---- transactions -------------------------------------------------------------------------------

    def begin(self, topics: Collection[str]) -> HalfTransaction:
        """Return a new transaction. Raises `InvalidArgument`, and `Closed` in a fork."""
        self._core.check_process()
        self._client.check_open()
        if isinstance(topics, str):
            raise InvalidArgument(f"topics is {topics!r}: give a sequence of names")
        transaction = HalfTransaction(self.group, tuple(map(check_topic, topics)))
        self._checks.begin(transaction.number)
        return transaction

    def is_quick(self, transaction: HalfTransaction, messages: Iterable[Message]) -> bool:
        """Tell whether `send` takes little time before its first step: the topics are known, and it is not much."""
        size = 0
        for message in messages:
            check_message_type(message)
            if not self._core.knows(message.topic):
                return False
            size += len(message.body)
        return size < _LARGE_BYTES and all(map(self._core.knows, transaction.topics))

    def send(
        self,
        transaction: HalfTransaction,
        messages: Iterable[Message],
        queue: MessageQueue | None,
        selector: Selector | None,
    ) -> Steps[None]:
        """Send half messages until they are on disk."""
        batches = self._prepare(transaction, messages, queue, selector)
        seen = [item for batch in batches for item in batch.seen]
        try:
            if batches:
                yield LoopStep(self._client, partial(self._store, transaction, batches))
        except BaseException as error:  # if it is Ctrl-C, nobody knows what is stored
            if isinstance(error, MiniMQError):
                self._avoid[transaction.broker_name] = time.monotonic() + _AVOID_S
            transaction.fail(error if isinstance(error, MiniMQError) else None)
            self._not_sent(seen, error)
            raise
        transaction.batches += len(batches)
        for item in seen:
            self._core.sent(item)

    def _prepare(
        self,
        transaction: HalfTransaction,
        messages: Iterable[Message],
        queue: MessageQueue | None,
        selector: Selector | None,
    ) -> list[_HalfBatch]:
        self._core.check_process()
        transaction.check_open()
        places: dict[tuple[str, str | None, MessageQueue | None], MessageQueue] = {}
        items: list[PendingMessage] = []
        queues: list[MessageQueue] = []
        try:
            for message in messages:
                item = self._core.prepare(message, queue, selector, None)
                items.append(item)
                _check_due(item.message)
                item.born_ms = time.time_ns() // 1_000_000
                key = item.message.topic, item.message.message_group, item.queue
                if key not in places:
                    places[key] = self._choose(transaction, item.message.topic, item.queue)
                queues.append(places[key])
            return [
                _HalfBatch(
                    part.queue,
                    self._batcher.encode(part, items, BatchNumber(next(self._sequences), 0)),
                    [items[index] for index in part.indices] if self._core.has_interceptors else (),
                )
                for part in self._batcher.parts(items, queues)
            ]
        except BaseException as error:
            self._not_sent(items, error)
            raise

    def _choose(self, transaction: HalfTransaction, topic: str, queue: MessageQueue | None) -> MessageQueue:
        route = self._client.routes.known(topic)
        if route is None:
            raise TopicNotFound.nowhere(topic)
        chosen = transaction.choose(route, queue, self._brokers(transaction, route), next(self._turns))
        transaction.sent(chosen)
        return chosen

    def _brokers(self, transaction: HalfTransaction, route: TopicRoute) -> list[str]:
        if transaction.broker_name:
            return []
        names = dict.fromkeys(queue.broker_name for queue in route.write_queues())
        for topic in transaction.topics:
            carrying = {queue.broker_name for queue in self._core.queues(topic)}
            names = {name: None for name in names if name in carrying}
        found = [*names]
        turn = next(self._turns) % max(len(found), 1)
        rotated = found[turn:] + found[:turn]
        now, health = time.monotonic(), self._client.connection.health
        return sorted(
            rotated,
            key=lambda name: health.is_silent(route.master_of(name) or "") or self._avoid.get(name, 0.0) > now,
        )

    def _not_sent(self, items: Iterable[PendingMessage], error: BaseException) -> None:
        for item in items:
            self._core.withdraw(item, error)

    def leave(self, transaction: HalfTransaction, error: BaseException | None) -> Steps[None]:
        """End a transaction as its block ends; what is not ended then, the check decides."""
        if error is not None:
            transaction.fail()
        rolls_back, failure = transaction.must_roll_back, transaction.failure
        request = transaction.end(ROLLBACK if rolls_back else COMMIT)
        try:
            if request is not None:
                end = partial(self._end, transaction.topic, transaction.broker_name, request)
                transaction.check_ended(request.outcome, (yield LoopStep(self._client, end)))
        except MiniMQError as reason:
            if not rolls_back:
                raise transaction.not_committed(reason) from None
            log.warning("producer: %s is not rolled back yet, its check decides error=%s", transaction, reason.message)
        finally:
            self._checks.ended(transaction.number)
        if error is None and failure is not None:
            raise transaction.failed()

    # ---- on the event loop of the connection -----------------------------------------------------------

    async def _store(self, transaction: HalfTransaction, batches: Sequence[_HalfBatch]) -> None:
        if len(batches) == 1:  # which takes no task of its own
            await self._stage(transaction, batches[0])
        else:
            await asyncio.gather(*(self._stage(transaction, batch) for batch in batches))

    async def _stage(self, transaction: HalfTransaction, batch: _HalfBatch) -> None:
        route = self._client.routes.known(batch.queue.topic)
        key_queues = route.key_queues if route else 0

        async def attempt(address: str) -> broker_pb2.AppendResult:
            append = self._append_streams.to(address).append
            return await answer_of(
                lambda take: append(batch.queue, batch.data, take, transaction.id, key_queues=key_queues)
            )

        master = RoutedMaster(self._client, batch.queue.topic, batch.queue.broker_name)
        await at_master(master, attempt, self._options.send_timeout_s)

    async def _end(self, topic: str, broker_name: str, request: halves_pb2.EndHalfRequest) -> halves_pb2.EndHalfResult:
        """Have a transaction ended."""

        async def attempt(address: str) -> halves_pb2.EndHalfResult:
            return await self._end_stream(address).end(request)

        master = RoutedMaster(self._client, topic, broker_name)
        return await at_master(master, attempt, self._options.send_timeout_s)

    def _end_stream(self, address: str) -> EndStream:
        stream = self._end_streams.get(address)
        if stream is None or stream.ended:
            stream = self._end_streams[address] = EndStream(self._client.connection, address)
        return stream

    def _close_streams(self) -> None:
        for stream in self._end_streams.values():
            stream.close()

    # ---- the end ------------------------------------------------------------------------------------

    @property
    def is_forked(self) -> bool:
        """True if the caller runs in a fork of the process that made this."""
        return self._core.is_forked

    def release(self) -> None:
        """End all that serves the producer; what is on its way fails. Idempotent."""
        if self._core.is_forked:
            return
        self._checks.close()
        self._append_streams.close()
        self._client.connection.call_soon(self._close_streams)
        self._core.close(0.0)


def _check_due(message: Message) -> None:
    if message.deliver_after_s is not None or message.deliver_at is not None:
        raise InvalidArgument(
            "a message of a transaction is delivered when that commits: leave out its due time, or send it by itself"
        )
