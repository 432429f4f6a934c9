"""Transactions with half messages: staging, commit and rollback, and the check that brokers ask for."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from minimq.arguments import is_async
from minimq.connection.client import ClusterClient, RoutedMaster
from minimq.connection.cluster import Cluster
from minimq.connection.loop_thread import CLOSED
from minimq.connection.master_calls import call_master
from minimq.features.half_messages.event_streams import EventStreams
from minimq.features.half_messages.resolutions import OUTCOMES, TransactionResolution
from minimq.sending.append_stream import AppendStream, StreamsByAddress
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.pending_batch import PendingMessage
from minimq.sending.placement import EncodedMessages, Part, PlacedMessages
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.selectors import Selector
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import (
    Closed,
    InvalidArgument,
    MinimqError,
    QueueNotFound,
    SendFailed,
    TopicNotFound,
    TransactionEnded,
    TransactionExpired,
)
from minimq_common.model import MESSAGE_GROUP, Message, MessageQueue
from minimq_common.names import check_producer_group, check_topic
from minimq_common.retry_log import RetryLog
from minimq_common.wire.bound_check import check_bounds
from minimq_common.wire.protocol_bounds import MAX_SEQUENCES
from minimq_proto.v1 import staged_pb2

log = logging.getLogger(__name__)

#: Interval of checks for new brokers.
_LOOK_S = 5.0
#: Concurrent checks, if `check` is a plain function.
_THREADS = 4
#: Timeout of `close` for running checks.
_JOIN_S = 2.0

#: Ends a transaction; the arguments are one of its topics and the name of its broker.
EndHalf = Callable[[str, str, staged_pb2.EndHalfRequest], Coroutine[Any, Any, staged_pb2.HalfOutcome.ValueType]]

_NAMES = {staged_pb2.HALF_OUTCOME_COMMITTED: "was committed", staged_pb2.HALF_OUTCOME_ROLLED_BACK: "was rolled back"}


class CheckBack:
    """Runs the check of a producer group when a broker asks for the outcome of a transaction."""

    def __init__(self, client: ClusterClient, group: str, producer_id: int, check: CheckCalls, end: EndHalf) -> None:
        self._client = client
        self._group = group
        self._producer_id = producer_id
        self._check = check
        self._end = end
        #: Numbers of transactions whose blocks are running: the end of the block decides, not the check.
        self.open: set[int] = set()
        #: Running checks by number of transaction.
        self._asked: dict[int, asyncio.Task[None]] = {}
        self._faults = RetryLog(log)
        self._attending: asyncio.Task[None] | None = None
        self._is_closed = False
        client.connection.call_soon(self._start)

    def close(self) -> None:
        """Answer no broker from now on; a plain function that runs is not interrupted. Idempotent."""
        self._is_closed = True
        self._client.connection.call_soon(self._cancel)

    def _cancel(self) -> None:
        for task in [*filter(None, [self._attending]), *self._asked.values()]:
            task.cancel()

    def _start(self) -> None:
        if not self._is_closed:
            self._attending = asyncio.create_task(self._attend(), name="attend-all")

    async def _attend(self) -> None:
        # All brokers of the cluster, including those that join later.
        hello = staged_pb2.EventsRequest(
            client_id=f"producer-{self._producer_id:016x}",
            producer_groups=[self._group],
            producer_ids=[self._producer_id],
        )
        streams, nameservers = EventStreams(self._client, hello, self._on_event), self._client.nameservers
        with closing(streams):
            while True:
                try:
                    for broker in await nameservers.brokers_of_all(timeout_s=self._client.timeout_s):
                        streams.attend(broker.broker_name)
                except Closed:
                    return
                except MinimqError as error:
                    log.debug("client: the brokers to attend are not known error=%s", error.message)
                await asyncio.sleep(_LOOK_S)

    def _on_event(self, broker_name: str, event: staged_pb2.ClientEvent) -> None:
        check = event.check
        number = check.number
        if event.WhichOneof("event") != "check" or self._is_closed or number in self._asked:
            return
        try:
            check_bounds(check)
            message = first_message(check.topic, check.batch)
        except (DecodeError, MinimqError) as error:  # any client with write access may have sent it
            text = "producer: the half message of a check cannot be read number=%d broker=%s error=%s"
            log.warning(text, number, broker_name, error)
            return
        if check.producer_group == self._group and number not in self.open:
            task = asyncio.create_task(self._answer(broker_name, check.topic, number, message), name="check-back")
            self._asked[number] = task
            task.add_done_callback(lambda _: self._asked.pop(number, None))

    async def _answer(self, broker_name: str, topic: str, number: int, message: Message) -> None:
        try:
            answer = await self._check.call(message)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            self._faults.crashed("producer: a check raised, and is asked again later number=%d", number, cause=error)
            return
        if not isinstance(answer, TransactionResolution):
            text = "producer: a check returned %r: it must return COMMIT, ROLLBACK or UNKNOWN number=%d"
            log.error(text, answer, number)
            return
        if answer is TransactionResolution.UNKNOWN:
            return
        wanted = OUTCOMES[answer]
        try:
            stands = await self._end(
                topic, broker_name, staged_pb2.EndHalfRequest(producer_group=self._group, number=number, outcome=wanted)
            )
        except MinimqError as error:
            text = "producer: the answer of a check was not accepted number=%d answer=%s error=%s"
            log.info(text, number, answer.value, error.message)
            return
        if stands != wanted:
            text = "producer: a check answered too late, another outcome stands number=%d answer=%s outcome=%s"
            log.warning(text, number, answer.value, staged_pb2.HalfOutcome.Name(stands))


class CheckCalls:
    """Calls the check of the user: a coroutine function on the user's loop, a plain one on threads."""

    def __init__(self, check: Callable[[Message], Any]) -> None:
        self._check = check
        self._is_coroutine = is_async(check)
        #: The loop for a coroutine function; None until the user has one.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._threads = [CallbackThread(f"minimq-check-{number}") for number in range(_THREADS)]
        self._turn = 0

    async def call(self, message: Message) -> Any:
        """Return the result of the check for a message. Raises what it raises."""
        if self._is_coroutine:
            if self.loop is None or self.loop.is_closed():
                return TransactionResolution.UNKNOWN
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._check(message), self.loop))
        made: Future[Any] = Future()

        def run() -> None:
            if not made.set_running_or_notify_cancel():
                return
            try:
                made.set_result(self._check(message))
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                made.set_exception(error)

        self._turn += 1
        self._threads[self._turn % _THREADS].run(run)
        return await asyncio.wrap_future(made)

    def close(self) -> None:
        """End the threads after their running calls; wait up to `_JOIN_S` for each."""
        for thread in self._threads:
            thread.close(_JOIN_S)


def first_message(topic: str, data: bytes) -> Message:
    """Return the first message of a batch. Raises `CorruptBatch` and `InvalidArgument`."""
    records = RecordBatch(data)
    records.check_values()
    records.check_texts()
    properties = records.properties(0)
    group = properties.pop(MESSAGE_GROUP, None)
    return Message(topic, records.bodies()[0], records.tags()[0], records.keys(0), properties, message_group=group)


class _HalfMessage(NamedTuple):
    """The `Hold` of half messages."""

    group: str
    transaction: int

    @property
    def bucket(self) -> _HalfMessage:
        return self

    def merged(self, _other: _HalfMessage) -> _HalfMessage:
        return self

    def write(self, request: Any, _now: float) -> None:
        held = request.transaction
        held.name, held.number, held.is_half = self.group, self.transaction, True

    def held(self, _queue: MessageQueue, _result: Any) -> None:
        return None


@dataclass(slots=True)
class HalfTransaction:
    """The state of one transaction. Owned by the thread or task that began it."""

    group: str
    topics: Sequence[str]
    number: int = field(default_factory=lambda: random.getrandbits(63))
    #: A queue of the broker of the transaction; None before the first message.
    at: MessageQueue | None = None
    batches: int = 0
    messages: int = 0
    has_ended: bool = False
    must_roll_back: bool = False
    #: The error that causes the rollback, if any.
    failure: MinimqError | None = None

    @property
    def other_topics(self) -> Sequence[str]:
        """The topics that its broker must carry, besides those of the messages, while it has none."""
        return self.topics if self.at is None else ()

    def check_open(self) -> None:
        """Raise an error if no further message can be sent."""
        if self.has_ended:
            raise InvalidArgument("the transaction has ended: send within the block of `producer.transaction()`")
        if self.must_roll_back:
            raise self.failed()
        if self.batches >= MAX_SEQUENCES:
            raise InvalidArgument(f"the transaction has {self.batches:,} batches: begin another one")

    def failed(self) -> SendFailed:
        """Return the error for a send or commit in a transaction that must roll back."""
        why = f": {self.failure.message}" if self.failure is not None else ""
        return SendFailed(
            f"the transaction is rolled back: `rollback` was called, or one of its messages was not stored{why}",
            not_stored=self.messages,
        )

    def fail(self, error: MinimqError | None = None) -> None:
        """Make the transaction roll back at its end."""
        if not self.must_roll_back:
            self.must_roll_back, self.failure = True, error

    def check_ended(self, outcome: staged_pb2.HalfOutcome.ValueType) -> None:
        """Raise an error if the transaction did not end as requested."""
        commits = not self.must_roll_back
        if commits is (outcome == staged_pb2.HALF_OUTCOME_COMMITTED):
            return
        assert self.at is not None
        if outcome == staged_pb2.HALF_OUTCOME_EXPIRED:
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
    """The implementation that both transactional producers share: stages messages, ends transactions. Thread-safe."""

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        group: str,
        options: ProducerOptions,
        check: Callable[[Message], Any],
        interceptors: Sequence[SendInterceptor],
    ) -> None:
        self.group = check_producer_group(group)
        self._timeout_s = options.send_timeout_s
        self._core = ProducerCore(nameserver, options, interceptors)
        self.client, self._transactor = self._core.client, self._core.transactor
        self._streams = StreamsByAddress(self.client.connection, AppendStream)
        self.check = CheckCalls(check)
        self._checks = CheckBack(self.client, group, self._transactor.producer_id, self.check, self._end)

    def begin(self, topics: Collection[str]) -> HalfTransaction:
        """Return a new transaction. Raises `InvalidArgument` and `Closed`."""
        self.client.connection.process.check()
        if self.client.is_closed:
            raise Closed(CLOSED)
        if isinstance(topics, str):
            raise InvalidArgument(f"topics is {topics!r}: give a sequence of names")
        transaction = HalfTransaction(self.group, tuple(map(check_topic, topics)))
        self._checks.open.add(transaction.number)
        return transaction

    # ---- the parts of a caller --------------------------------------------------------------------------

    def accept(
        self,
        transaction: HalfTransaction,
        messages: Iterable[Message],
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> list[PendingMessage]:
        """Run the interceptors, and validate messages."""
        self.client.check_open()
        transaction.check_open()
        items: list[PendingMessage] = []
        try:
            for message in messages:
                items.append(self._transactor.accept(message, queue, selector))
        except BaseException as error:
            self._transactor.interceptors.not_sent((item.message for item in items), error)
            raise
        return items

    def send(self, transaction: HalfTransaction, items: Sequence[PendingMessage]) -> None:
        """Send half messages, and wait until they are on disk."""
        with self._sending(transaction, items):
            self._transactor.store(items, transaction.other_topics, partial(self._stage_all, transaction))

    async def send_async(self, transaction: HalfTransaction, items: Sequence[PendingMessage]) -> None:
        """Like `send`, for a task of a user's loop."""
        with self._sending(transaction, items):
            await self._transactor.store_async(items, transaction.other_topics, partial(self._stage_all, transaction))

    @contextmanager
    def _sending(self, transaction: HalfTransaction, items: Sequence[PendingMessage]) -> Iterator[None]:
        interceptors = self._transactor.interceptors
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):  # such as Ctrl-C: it is not known what is stored
                transaction.fail()
            interceptors.not_sent((item.message for item in items), error)
            raise
        for item in items if interceptors else ():
            interceptors.after_send(item.message, None, None)

    def leave(self, transaction: HalfTransaction, error: BaseException | None) -> None:
        """Commit or roll back at the end of the block. If that fails, the check decides later."""
        with self._leaving(transaction, error) as end:
            if end is not None:
                transaction.check_ended(self.client.wait(end))

    async def leave_async(self, transaction: HalfTransaction, error: BaseException | None) -> None:
        """Like `leave`, for a task of a user's loop."""
        with self._leaving(transaction, error) as end:
            if end is not None:
                transaction.check_ended(await self.client.result(end))

    @contextmanager
    def _leaving(
        self, transaction: HalfTransaction, error: BaseException | None
    ) -> Iterator[Callable[[], Coroutine[Any, Any, staged_pb2.HalfOutcome.ValueType]] | None]:
        if error is not None:
            transaction.fail()
        transaction.has_ended = True
        at = transaction.at
        resolution = TransactionResolution.ROLLBACK if transaction.must_roll_back else TransactionResolution.COMMIT
        end = staged_pb2.EndHalfRequest(
            producer_group=self.group,
            number=transaction.number,
            outcome=OUTCOMES[resolution],
            batches=max(transaction.batches, 1),
        )
        try:
            yield partial(self._end, at.topic, at.broker_name, end) if at is not None else None
        except MinimqError as failure:
            if transaction.must_roll_back:
                text = "producer: %s is not rolled back yet, its check decides error=%s"
                log.warning(text, transaction, failure.message)
            elif at is None or isinstance(failure, TransactionEnded | TransactionExpired | InvalidArgument):
                raise
            else:
                raise failure.with_message(
                    f"{transaction}: it is not known whether broker {at.broker_name} has committed it "
                    f"({failure.message}); its messages are stored, and the check of the producer group decides on them"
                ) from None
        finally:
            self._checks.open.discard(transaction.number)
        if error is None and transaction.failure is not None:
            raise transaction.failed()

    # ---- on the event loop of the connection --------------------------------------------------------------

    async def _stage_all(self, transaction: HalfTransaction, encoded: EncodedMessages) -> None:
        if not encoded.parts:
            return
        half = _HalfMessage(transaction.group, transaction.number)
        try:
            placed = await self._place(transaction, encoded)
            transaction.messages += encoded.messages
            transaction.at = transaction.at or placed.parts[0][0]  # from now on, the broker may have a part of it
            try:
                await asyncio.gather(*(self._stage(half, queue, part) for queue, part in placed.parts))
            except BaseException as error:
                transaction.fail(error if isinstance(error, MinimqError) else None)
                raise
            transaction.batches += len(placed.parts)
        finally:
            self._transactor.settled(encoded)

    async def _place(self, transaction: HalfTransaction, encoded: EncodedMessages) -> PlacedMessages:
        try:
            return await self._transactor.place(encoded, transaction.at, (), time.monotonic() + self._timeout_s)
        except TopicNotFound as error:
            if not all(map(self._core.knows, encoded.topics)):
                raise
            raise InvalidArgument(
                f"{error.message}; or name all topics ahead, producer.transaction(topics=[...])"
            ) from None

    async def _stage(self, half: _HalfMessage, queue: MessageQueue, part: Part) -> None:
        async def stage(address: str, limit_s: float) -> None:
            route = self.client.routes.known(queue.topic)
            stream, place = self._streams[address], part.place(queue, route)
            key_queues = route.key_queues if route is not None else 0
            await stream.answer(
                lambda take: stream.append(place, part.data, take, half, key_queues=key_queues), limit_s
            )

        def again(_: str, error: MinimqError) -> bool:
            return error.retriable or (isinstance(error, QueueNotFound) and part.may_move)

        master = RoutedMaster(self.client, queue.topic, queue.broker_name)
        await call_master(master, stage, self._timeout_s, again=again)

    async def _end(
        self, topic: str, broker_name: str, end: staged_pb2.EndHalfRequest
    ) -> staged_pb2.HalfOutcome.ValueType:
        async def call(address: str, limit_s: float) -> staged_pb2.EndHalfResponse:
            answer: staged_pb2.EndHalfResponse = await self.client.connection.brokers.call(
                address, lambda stub: stub.of(staged_pb2).EndHalf, end, limit_s
            )
            return answer

        master = RoutedMaster(self.client, topic, broker_name)
        return (await call_master(master, call, self._timeout_s)).outcome

    # ---- the end ------------------------------------------------------------------------------------

    def release(self) -> None:
        """Close everything; pending requests fail. Idempotent."""
        if not self.client.connection.is_void:
            self._checks.close()
            self.client.connection.call_soon(self._streams.close)
            self._core.close(0.0)
            self.check.close()
