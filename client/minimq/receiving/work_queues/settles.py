"""The settles that callers ask for, on any thread, and the acknowledgements of many calls that go together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from minimq.connection.connection import Connection
from minimq.connection.loop_thread import CLOSED
from minimq.receiving.work_queues.popped import Receipts, Receivables, receipts_of, united
from minimq.receiving.work_queues.settler import Settler, Told
from minimq.sending.callback_thread import CallbackThread
from minimq.transport.home_process import check_may_wait
from minimq_common.errors import Closed, InvalidArgument, MiniMQError
from minimq_proto.v1 import broker_pb2

#: So many acknowledgements do not wait for others, nor does any for longer than this, in seconds.
_MOST_ACKS = 16
_GATHER_S = 0.02


class Settlement(NamedTuple):
    """The outcome of messages, and a duration in ms."""

    outcome: broker_pb2.PopOutcome.ValueType
    duration_ms: int


class _AckFuture(Future[None]):
    """Calls back on a thread of its own: the event loop that completes it must not run the code of users."""

    def __init__(self, callbacks: CallbackThread) -> None:
        super().__init__()
        self._callbacks = callbacks

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        super().add_done_callback(lambda future: self._callbacks.run(partial(fn, future)))


class _Ack(NamedTuple):
    receipts: Receipts
    acknowledged: _AckFuture


def _complete(future: Future[None] | asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


#: See `SimpleConsumer.ack`.
DONE = Settlement(broker_pb2.POP_OUTCOME_DONE, 0)


class Settles:
    """Hands settles over to the event loop, and tells the callers what became of them."""

    def __init__(self, connection: Connection, settler: Settler, group: str, check_open: Callable[[], None]) -> None:
        self._connection = connection
        self._settler = settler
        self._group = group
        self._check_open = check_open
        self._callbacks = CallbackThread("minimq-ack-callbacks")
        #: Acknowledgements on their way to the loop, which looks for them once those under way are answered.
        self._acks: deque[_Ack] = deque()
        self._has_acks_under_way = False
        # What follows belongs to the event loop.
        self._unsettled: set[Told] = set()
        self._all_settled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        connection.at_end(self._end)

    def settle_and_wait(self, messages: Receivables, how: Settlement) -> None:
        """Settle messages; block until that is on disk."""
        told: SimpleQueue[BaseException | None] = SimpleQueue()
        if self._begin_settle(messages, how, told.put) and (error := told.get()) is not None:
            raise error

    async def settle(self, messages: Receivables, how: Settlement) -> None:
        """Do as `settle_and_wait` in a task of another event loop."""
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[None] = loop.create_future()

        def told(error: BaseException | None) -> None:
            with suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(_complete, settled, error)

        if self._begin_settle(messages, how, told):
            await settled

    def ack_soon(self, messages: Receivables) -> Future[None]:
        """Acknowledge messages, along with others; return a future that is done when it is on disk. On any thread.

        The first go at once. Others follow once these are answered, or with the next take, or if they are many: to wake
        the loop for each takes more time than the rest.
        """
        self._check_open()
        acknowledged = _AckFuture(self._callbacks)
        try:
            self._acks.append(_Ack(receipts_of(messages, self._group), acknowledged))
        except InvalidArgument as error:
            acknowledged.set_exception(error)
            return acknowledged
        if not self._has_acks_under_way or len(self._acks) == _MOST_ACKS:
            self._has_acks_under_way = True
            if not self._connection.call_soon(self.send_acks):
                raise Closed(CLOSED)
        return acknowledged

    def send_acks(self) -> None:
        """Send the acknowledgements that wait for others. On the event loop."""
        # Those of each broker by themselves: nobody waits for a broker that is away and has none of his messages.
        by_broker: dict[frozenset[str], list[_Ack]] = {}
        for _ in range(len(self._acks)):
            ack = self._acks.popleft()
            if ack.acknowledged.set_running_or_notify_cancel():
                by_broker.setdefault(frozenset(queue.broker_name for queue, _ in ack.receipts), []).append(ack)
        for acks in by_broker.values():
            self._settle_on_loop(united(ack.receipts for ack in acks), DONE, partial(self._acknowledged, acks))
        self._look_for_acks()

    def _acknowledged(self, acks: Sequence[_Ack], error: BaseException | None) -> None:
        if len(acks) > 1 and isinstance(error, MiniMQError) and error.answered:
            for receipts, acknowledged in acks:  # to one of them, perhaps: each hears what is true of its own
                self._settle_on_loop(receipts, DONE, partial(_complete, acknowledged))
        else:
            for _, acknowledged in acks:
                _complete(acknowledged, error)

    def _look_for_acks(self) -> None:
        if not self._unsettled:
            self._all_settled.set()
            self._has_acks_under_way = False  # first: whoever adds one from here on wakes the loop
            if self._acks:
                self.send_acks()
        elif self._timer is None and not self._has_ended:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self.send_acks()

    def _begin_settle(self, messages: Receivables, how: Settlement, told: Told) -> bool:
        self._check_open()
        receipts = receipts_of(messages, self._group)
        check_may_wait()
        if receipts and not self._connection.call_soon(self._settle_on_loop, receipts, how, told):
            raise Closed(CLOSED)
        return bool(receipts)

    def _settle_on_loop(self, receipts: Receipts, how: Settlement, told: Told) -> None:
        self._unsettled.add(told)
        if self._has_ended:
            self._settled(told, Closed(CLOSED))
        else:
            self._settler.begin(receipts, *how, partial(self._settled, told))

    def _settled(self, told: Told, error: BaseException | None) -> None:
        if told in self._unsettled:
            self._unsettled.discard(told)
            told(error)
        self._look_for_acks()

    def _end(self) -> None:
        self._has_ended = True
        self.send_acks()
        for told in [*self._unsettled]:
            self._settled(told, Closed(CLOSED))

    async def wait_all(self) -> None:
        """Wait until everything is settled. On the event loop."""
        self.send_acks()
        while self._unsettled:
            self._all_settled.clear()
            await self._all_settled.wait()

    def close(self) -> None:
        """Tell all who wait that nobody answers any more."""
        if self._connection.call_soon(self._end):  # else it is called at the end
            self._connection.not_at_end(self._end)
        self._callbacks.close(0)
