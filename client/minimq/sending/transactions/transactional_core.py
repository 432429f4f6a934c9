"""Transactions with half messages: what their producers stage at once, and how they end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from minimq.administration.resolutions import COMMIT, OUTCOMES, ROLLBACK
from minimq.arguments import check_message_type
from minimq.connection.at_master import RoutedMaster, answer_of, at_master
from minimq.connection.cluster import Cluster
from minimq.connection.loop_calls import LoopStep, Steps
from minimq.sending.append_stream import AppendStreams
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.selectors import Selector
from minimq.sending.transactions.check_back import AskUser, CheckBack
from minimq.sending.transactions.decisions import Transaction
from minimq.sending.transactions.open_transaction import LARGE_BYTES
from minimq.sending.transactions.placement import TransactionMessage
from minimq.sending.transactions.transactor import Absent, EncodedPart, PlacedMessages
from minimq.transport.client_log import client_logger
from minimq_common.errors import (
    InvalidArgument,
    MiniMQError,
    SendFailed,
    TopicNotFound,
    TransactionEnded,
    TransactionExpired,
)
from minimq_common.model import Message, MessageQueue
from minimq_common.names import check_producer_group, check_topic
from minimq_common.wire.protocol_bounds import MAX_SEQUENCES
from minimq_proto.v1 import broker_pb2, halves_pb2

log = client_logger(__name__)

#: A broker at which messages of a transaction failed is not the first choice for so long, in seconds.
_AVOID_S = 10.0
_NAMES = {
    halves_pb2.HALF_OUTCOME_COMMITTED: "was committed",
    halves_pb2.HALF_OUTCOME_ROLLED_BACK: "was rolled back",
}


@dataclass(slots=True)
class HalfTransaction:
    """One transaction; belongs to the thread or the task that has begun it."""

    group: str
    topics: Sequence[str]
    number: int = field(default_factory=lambda: random.getrandbits(63))
    #: A queue of the broker that has all messages; None before the first one.
    at: MessageQueue | None = None
    batches: int = 0
    has_ended: bool = False
    must_roll_back: bool = False
    #: Why it must; None without an error.
    failure: MiniMQError | None = None

    def check_open(self) -> None:
        """Raise `InvalidArgument` when nothing can be sent any more."""
        if self.has_ended:
            raise InvalidArgument("the transaction has ended: send within the block of `producer.transaction()`")
        if self.must_roll_back:
            raise self.failed()
        if self.batches >= MAX_SEQUENCES:
            raise InvalidArgument(f"the transaction has {self.batches:,} batches: begin another one")

    def failed(self) -> SendFailed:
        """Return the error of whoever goes on with a transaction that is to be rolled back."""
        why = f": {self.failure.message}" if self.failure is not None else ""
        return SendFailed(
            f"the transaction is rolled back, since it was told to be, or one of its messages was not stored{why}"
        )

    def fail(self, error: MiniMQError | None = None) -> None:
        """Have it rolled back."""
        if not self.must_roll_back:
            self.must_roll_back, self.failure = True, error

    def check_ended(self, outcome: halves_pb2.HalfOutcome.ValueType) -> None:
        """Raise the reason why it has not ended as it was to."""
        commits = not self.must_roll_back
        if commits is (outcome == halves_pb2.HALF_OUTCOME_COMMITTED):
            return
        assert self.at is not None
        if outcome == halves_pb2.HALF_OUTCOME_EXPIRED:
            raise TransactionExpired(
                f"{self} is not committed: broker {self.at.broker_name} does not have all of its {self.batches} "
                "batches any more; none of its messages is delivered"
            )
        raise TransactionEnded(
            f"{self} {_NAMES.get(outcome, 'has ended')} before it was {'committed' if commits else 'rolled back'}: by "
            "an answer of a check, which a member of the group gave while the block was open, or by hand; "
            f"{'none of its messages is' if commits else 'its messages are'} delivered"
        )

    def __str__(self) -> str:
        return f"transaction {self.number} of producer group {self.group!r}"


class TransactionalCore:
    """Stages the messages of transactions and ends them, for both faces of a transactional producer. Thread-safe."""

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        group: str,
        options: ProducerOptions,
        ask: AskUser,
        interceptors: Sequence[SendInterceptor],
    ) -> None:
        self.group = check_producer_group(group)
        self._timeout_s = options.send_timeout_s
        self._core = ProducerCore(nameserver, options, interceptors)
        self._client, self._transactor = self._core.client, self._core.transactor
        #: Until when brokers are not the first choice.
        self._avoid: dict[str, float] = {}
        self._streams = AppendStreams(self._client.connection)
        self._checks = CheckBack(self._client, group, self._transactor.producer_id, ask, self._end)

    def begin(self, topics: Collection[str]) -> HalfTransaction:
        """Return a new transaction. Raises `InvalidArgument`, and `Closed` in a fork."""
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
        return size < LARGE_BYTES and all(map(self._core.knows, transaction.topics))

    def send(
        self,
        transaction: HalfTransaction,
        messages: Iterable[Message],
        queue: MessageQueue | None,
        selector: Selector | None,
    ) -> Steps[None]:
        """Send half messages until they are on disk."""
        self._core.check_process()
        transaction.check_open()
        intake = self._core.intake
        items: list[TransactionMessage] = []
        try:
            for message in messages:
                items.append(intake.take(message, queue, selector))
            placed = self._place(transaction, items)
        except BaseException as error:
            intake.not_sent(items, error)
            raise
        if not items:
            return
        transaction.at = transaction.at or placed.parts[0].part.queue  # from now on it may have something of it
        try:
            yield LoopStep(self._client, partial(self._stage_all, transaction, placed.parts))
        except BaseException as error:  # if it is Ctrl-C, nobody knows what is stored
            if isinstance(error, MiniMQError):
                self._avoid[placed.broker_name] = time.monotonic() + _AVOID_S
            transaction.fail(error if isinstance(error, MiniMQError) else None)
            intake.not_sent(items, error)
            raise
        finally:
            self._transactor.settled(placed)
        transaction.batches += len(placed.parts)
        intake.sent(items)

    def _place(self, transaction: HalfTransaction, items: Sequence[TransactionMessage]) -> PlacedMessages:
        now = time.monotonic()
        avoid = [name for name, until in [*self._avoid.items()] if until > now]
        topics = transaction.topics if transaction.at is None else ()
        try:
            return self._transactor.place(items, transaction.at, avoid, topics)
        except Absent as absent:
            raise absent.error from None
        except TopicNotFound as error:
            if not all(map(self._core.knows, [*topics, *(item.message.topic for item in items)])):
                raise
            raise InvalidArgument(
                f"{error.message}; or name all topics ahead, producer.transaction(topics=[...])"
            ) from None

    def leave(self, transaction: HalfTransaction, error: BaseException | None) -> Steps[None]:
        """End a transaction as its block ends; what is not ended then, the check decides."""
        if error is not None:
            transaction.fail()
        transaction.has_ended = True
        try:
            if transaction.at is not None:
                yield from self._leave(transaction, transaction.at)
        finally:
            self._checks.ended(transaction.number)
        if error is None and transaction.failure is not None:
            raise transaction.failed()

    def _leave(self, transaction: HalfTransaction, at: MessageQueue) -> Steps[None]:
        end = halves_pb2.EndHalf(
            producer_group=self.group,
            number=transaction.number,
            outcome=OUTCOMES[ROLLBACK if transaction.must_roll_back else COMMIT],
            batches=max(transaction.batches, 1),
        )
        try:
            outcome = yield LoopStep(self._client, partial(self._end, at.topic, at.broker_name, end))
            transaction.check_ended(outcome)
        except MiniMQError as error:
            if transaction.must_roll_back:
                text = "producer: %s is not rolled back yet, its check decides error=%s"
                log.warning(text, transaction, error.message)
            elif isinstance(error, TransactionEnded | TransactionExpired | InvalidArgument):
                raise
            else:
                raise error.with_message(
                    f"{transaction}: it is not known whether broker {at.broker_name} has committed it "
                    f"({error.message}); its messages are stored, and the check of the producer group decides on them"
                ) from None

    # ---- on the event loop of the connection -----------------------------------------------------------

    async def _stage_all(self, transaction: HalfTransaction, parts: Sequence[EncodedPart]) -> None:
        half = Transaction(transaction.group, transaction.number, is_half=True)
        if len(parts) == 1:  # which takes no task of its own
            await self._stage(half, parts[0])
        else:
            await asyncio.gather(*(self._stage(half, each) for each in parts))

    async def _stage(self, half: Transaction, each: EncodedPart) -> None:
        queue = each.part.queue
        route = self._client.routes.known(queue.topic)
        key_queues = route.key_queues if route else 0

        async def attempt(address: str) -> broker_pb2.AppendResult:
            append = self._streams[address].append
            return await answer_of(lambda take: append(queue, each.data, take, half, key_queues=key_queues))

        await at_master(RoutedMaster(self._client, queue.topic, queue.broker_name), attempt, self._timeout_s)

    async def _end(self, topic: str, broker_name: str, end: halves_pb2.EndHalf) -> halves_pb2.HalfOutcome.ValueType:
        async def attempt(address: str) -> halves_pb2.HalfOutcome.ValueType:
            return await (await self._transactor.stream(address)).end(end)

        return await at_master(RoutedMaster(self._client, topic, broker_name), attempt, self._timeout_s)

    # ---- the end ------------------------------------------------------------------------------------

    @property
    def is_forked(self) -> bool:
        """True if the caller runs in a fork of the process that made this."""
        return self._core.is_forked

    def release(self) -> None:
        """End all that serves the producer; what is on its way fails. Idempotent."""
        if not self._core.is_forked:
            self._checks.close()
            self._client.connection.call_soon(self._streams.close)
            self._core.close(0.0)
