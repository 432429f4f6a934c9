"""The client's side of the check-back: it attends all brokers, and answers how transactions of its group end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import closing
from typing import Any

from google.protobuf.message import DecodeError

from minimq.administration.masters import RegisteredMaster
from minimq.administration.resolutions import OUTCOMES, UNKNOWN, TransactionResolution
from minimq.connection.client import ClusterClient
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.requests.attend_streams import AttendStreams
from minimq.transport.client_log import client_logger
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import Closed, MiniMQError
from minimq_common.model import Message
from minimq_common.outage_log import OutageLog
from minimq_common.properties import MESSAGE_GROUP
from minimq_common.wire.bound_check import check_bounds
from minimq_proto.v1 import attend_pb2, halves_pb2

log = client_logger(__name__)

#: How often it is looked for new brokers, in seconds.
_LOOK_S = 5.0
#: Checks that run at the same time.
_THREADS = 4

#: Calls the check of the user with a message, wherever that runs; returns what it returns, raises what it raises.
AskUser = Callable[[Message], Awaitable[Any]]
#: Has a transaction ended; takes a topic of it and the name of its broker.
EndHalf = Callable[[str, str, halves_pb2.EndHalf], Coroutine[Any, Any, halves_pb2.HalfOutcome.ValueType]]


class CheckBack:
    """Has the check of a producer group called when a broker asks for the end of a transaction.

    All of it lives on the event loop of the connection, but for `begin`, `ended` and `close`.
    """

    def __init__(self, client: ClusterClient, group: str, producer_id: int, ask: AskUser, end: EndHalf) -> None:
        self._client = client
        self._group = group
        self._producer_id = producer_id
        self._ask = ask
        self._end = end
        #: Numbers of transactions whose blocks are running: their producer is about to end them itself.
        self._open: set[int] = set()
        #: Those of which the check is running.
        self._asked: dict[int, asyncio.Task[None]] = {}
        self._faults = OutageLog(log)
        self._attending: asyncio.Task[None] | None = None
        self._is_closed = False
        client.connection.call_soon(self._start)

    def begin(self, number: int) -> None:
        """Note that the block of a transaction runs: the check is not asked about it."""
        self._open.add(number)

    def ended(self, number: int) -> None:
        """Note that it does so no more."""
        self._open.discard(number)

    def close(self) -> None:
        """Answer nothing any more. Idempotent."""
        self._is_closed = True
        self._client.connection.call_soon(self._cancel)

    def _cancel(self) -> None:
        for task in [*filter(None, [self._attending]), *self._asked.values()]:
            task.cancel()

    def _start(self) -> None:
        if not self._is_closed:
            self._attending = asyncio.create_task(self._attend(), name="attend-all")

    async def _attend(self) -> None:
        """Attend all brokers of the cluster, also those that are there later."""
        hello = attend_pb2.AttendRequest(
            client_id=f"producer-{self._producer_id:016x}",
            producer_groups=[self._group],
            producer_ids=[self._producer_id],
        )
        streams, nameservers = AttendStreams(self._client, hello, self._happened), self._client.nameservers
        with closing(streams):
            while True:
                try:
                    for broker in await nameservers.brokers_of_all(timeout_s=self._client.timeout_s):
                        streams.attend(RegisteredMaster(nameservers, broker.broker_name))
                except Closed:
                    return
                except MiniMQError as error:
                    log.debug("client: the brokers to attend are not known error=%s", error.message)
                await asyncio.sleep(_LOOK_S)

    def _happened(self, broker_name: str, event: attend_pb2.AttendEvent) -> None:
        check = event.check
        number = check.number
        if event.WhichOneof("event") != "check" or self._is_closed or number in self._asked:
            return
        try:
            check_bounds(check)
            message = first_message(check.topic, check.batch)
        except (DecodeError, MiniMQError) as error:  # whoever may write may send anything
            text = "producer: a half message cannot be opened for its check number=%d broker=%s error=%s"
            log.warning(text, number, broker_name, error)
            return
        if check.producer_group == self._group and number not in self._open:
            task = asyncio.create_task(self._answer(broker_name, check.topic, number, message), name="check-back")
            self._asked[number] = task
            task.add_done_callback(lambda _: self._asked.pop(number, None))

    async def _answer(self, broker_name: str, topic: str, number: int, message: Message) -> None:
        try:
            answer = await self._ask(message)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - it may raise anything
            self._faults.crashed("producer: a check raised, and is asked again later number=%d", number, cause=error)
            return
        if not isinstance(answer, TransactionResolution):
            text = "producer: a check returned %r: it must return COMMIT, ROLLBACK or UNKNOWN number=%d"
            log.error(text, answer, number)
            return
        if answer is UNKNOWN:
            return
        wanted = OUTCOMES[answer]
        try:
            stands = await self._end(
                topic, broker_name, halves_pb2.EndHalf(producer_group=self._group, number=number, outcome=wanted)
            )
        except MiniMQError as error:
            text = "producer: the answer of a check was not taken number=%d answer=%s error=%s"
            log.info(text, number, answer.value, error.message)
            return
        if stands != wanted:
            text = "producer: the answer of a check comes late, another outcome stands number=%d answer=%s outcome=%s"
            log.warning(text, number, answer.value, halves_pb2.HalfOutcome.Name(stands))


class CheckThreads:
    """Calls a check that is a plain function, on threads of its own."""

    def __init__(self, check: Callable[[Message], Any]) -> None:
        self._check = check
        self._threads = [CallbackThread(f"minimq-check-{number}") for number in range(_THREADS)]
        self._turn = 0

    async def ask(self, message: Message) -> Any:
        """Return what the check returns for a message. Raises what it raises."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Callable[[], Any]] = loop.create_future()

        def call() -> None:
            outcome: Future[Any] = Future()
            try:
                outcome.set_result(self._check(message))
            except BaseException as error:  # noqa: BLE001 - it may raise anything
                outcome.set_exception(error)
            loop.call_soon_threadsafe(_resolve, answered, outcome.result)

        self._turn += 1
        self._threads[self._turn % _THREADS].run(call)
        return (await answered)()

    def close(self, timeout_s: float) -> None:
        """End the threads after the calls that run; wait so long for each."""
        for thread in self._threads:
            thread.close(timeout_s)


def _resolve(answered: asyncio.Future[Callable[[], Any]], outcome: Callable[[], Any]) -> None:
    if not answered.done():  # the producer was closed meanwhile
        answered.set_result(outcome)


def first_message(topic: str, data: bytes) -> Message:
    """Return the first message of a batch. Raises `CorruptBatch` and `InvalidArgument`."""
    records = RecordBatch(data)
    records.check_values()
    records.check_texts()
    properties = records.properties(0)
    group = properties.pop(MESSAGE_GROUP, None)
    return Message(topic, records.bodies()[0], records.tags()[0], records.keys(0), properties, group)
