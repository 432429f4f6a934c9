"""The part that both faces of a transactional producer share."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from minimq.administration.resolutions import TransactionResolution
from minimq.arguments import check_message_type
from minimq.connection.cluster import Cluster
from minimq.sending.batch_encoder import BatchEncoder
from minimq.sending.check_back import AskUser, CheckBack
from minimq.sending.half_calls import HalfCallOutcome, HalfCalls
from minimq.sending.half_transaction import HalfTransaction
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.pending_batch import BatchNumber, PendingBatch, PendingMessage
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.selectors import Selector
from minimq_common.errors import InvalidArgument, TopicNotFound
from minimq_common.model import Message, MessageQueue, TopicRoute
from minimq_common.names import check_producer_group, check_topic

#: A broker at which the first message of a transaction failed is not the first choice for so long, in seconds.
_AVOID_S = 10.0


class HalfBatch(NamedTuple):
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
        self.options = options
        self._core = ProducerCore(nameserver, options, interceptors)
        self._client = self._core.client
        self._encoder = BatchEncoder(options)
        self._sequences = itertools.count()
        self._turns = itertools.count(random.randrange(1 << 16))
        #: A topic that each broker carries, and until when brokers are not the first choice.
        self._topics: dict[str, str] = {}
        self._avoid: dict[str, float] = {}
        self._calls = HalfCalls(self._client.connection, self._master_of, self._look_for, options.send_timeout_s)
        self._checks = CheckBack(self._client, group, self._encoder.producer_id, ask, self._calls)

    # ---- where brokers are ------------------------------------------------------------------------

    def _master_of(self, broker_name: str) -> str | None:
        topic = self._topics.get(broker_name)
        route = self._client.routes.known(topic) if topic is not None else None
        address = route.master_of(broker_name) if route is not None else None
        return address or self._checks.master_of(broker_name)

    def _look_for(self, broker_name: str) -> None:
        topic = self._topics.get(broker_name)
        if topic is not None:
            self._client.routes.refresh_soon(topic)

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

    def prepare(
        self,
        transaction: HalfTransaction,
        messages: Iterable[Message],
        queue: MessageQueue | None,
        selector: Selector | None,
    ) -> list[HalfBatch]:
        """Return messages as they will be sent. Asks a name server, and so waits, when a topic is not known."""
        transaction.check_open()
        gathered: dict[tuple[str, str | None, MessageQueue | None], PendingBatch] = {}
        items: list[PendingMessage] = []
        try:
            for message in messages:
                item = self._core.prepare(message, queue, selector, None)
                items.append(item)
                self._gather(transaction, item, gathered)
            return [batch for pending in gathered.values() for batch in self._encoded(pending)]
        except BaseException as error:
            self._not_sent(items, error)
            raise

    def _gather(
        self,
        transaction: HalfTransaction,
        item: PendingMessage,
        gathered: dict[tuple[str, str | None, MessageQueue | None], PendingBatch],
    ) -> None:
        message = item.message
        _check_due(message)
        key = (message.topic, message.message_group, item.queue)
        if key not in gathered:
            chosen = self._choose(transaction, message.topic, item.queue)
            transaction.sent(chosen)
            gathered[key] = PendingBatch(message.topic, chosen, message_group=message.message_group)
        item.born_ms = time.time_ns() // 1_000_000
        gathered[key].messages.append(item)

    def _choose(self, transaction: HalfTransaction, topic: str, queue: MessageQueue | None) -> MessageQueue:
        route = self._client.routes.known(topic)
        if route is None:
            raise TopicNotFound.nowhere(topic)
        chosen = transaction.choose(route, queue, self._brokers(transaction, route), next(self._turns))
        self._topics[chosen.broker_name] = topic
        return chosen

    def _encoded(self, pending: PendingBatch) -> Iterator[HalfBatch]:
        assert pending.queue is not None
        while pending.messages:
            batch = pending.take(self.options.batch_messages, self.options.batch_bytes)
            batch.number = BatchNumber(next(self._sequences), 0)
            seen = [*batch.messages] if self._core.has_interceptors else ()
            yield HalfBatch(pending.queue, self._encoder.encode_messages(batch), seen)

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

    def avoid(self, broker_name: str) -> None:
        """Let new transactions begin at other brokers for a while, if there are any."""
        self._avoid[broker_name] = time.monotonic() + _AVOID_S

    async def find(self, transaction: HalfTransaction, messages: Iterable[Message]) -> None:
        """Find the topics that `prepare` needs, and suspend a task instead of blocking."""
        for message in messages:
            check_message_type(message)
            if not self._core.knows(message.topic):
                await self._core.find(message)
        for topic in transaction.topics:
            if not self._core.knows(topic):
                await self._core.find(Message(topic, b"x"))

    def stage(self, transaction: HalfTransaction, batch: HalfBatch, outcome: HalfCallOutcome) -> None:
        """Send a batch; the outcome is an `AppendResult`."""
        route = self._client.routes.known(batch.queue.topic)
        self._calls.stage(batch.queue, batch.data, transaction.id, route.key_queues if route else 0, outcome)

    def stored(self, batches: Iterable[HalfBatch]) -> None:
        """Tell the interceptors that batches are on disk."""
        for batch in batches:
            for item in batch.seen:
                self._core.sent(item)

    def not_stored(self, batches: Iterable[HalfBatch], error: BaseException) -> None:
        """Tell the interceptors why batches are not on disk, or not known to be."""
        for batch in batches:
            self._not_sent(batch.seen, error)

    def _not_sent(self, items: Iterable[PendingMessage], error: BaseException) -> None:
        for item in items:
            self._core.withdraw(item, error)

    def end(self, transaction: HalfTransaction, resolution: TransactionResolution, outcome: HalfCallOutcome) -> bool:
        """End a transaction; return False if there is nothing to end, and then there is no outcome."""
        request = transaction.end(resolution)
        if request is None:
            self.left(transaction)
            return False
        self._calls.end(transaction.broker_name, request, outcome)
        return True

    def left(self, transaction: HalfTransaction) -> None:
        """Note that nobody works on a transaction any more: if it has not ended, the check decides."""
        self._checks.ended(transaction.number)

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
        self._calls.close()
        self._core.close(0.0)


def _check_due(message: Message) -> None:
    if message.deliver_after_s is not None or message.deliver_at is not None:
        raise InvalidArgument(
            "a message of a transaction is delivered when that commits: leave out its due time, or send it by itself"
        )
