"""Settles messages by their receipts, at the masters of their queues; acknowledgements of many calls go together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from minimq.connection.client import ClusterClient
from minimq.connection.loop_calls import LoopOutcome
from minimq.connection.loop_thread import CLOSED
from minimq.receiving.work_queues.in_hand import InHand
from minimq.receiving.work_queues.pop_stream import PopStream, SettleKey
from minimq.receiving.work_queues.popped import (
    ReceiptHandle,
    Receipts,
    Receivables,
    Span,
    merged,
    receipts_of,
    united,
)
from minimq.sending.callback_thread import CallbackThread
from minimq.transport.home_process import check_no_finalizer
from minimq_common.errors import (
    Closed,
    DeadlineExceeded,
    HandleExpired,
    InvalidArgument,
    MiniMQError,
    Unavailable,
)
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

#: Delay before a broker that has failed is asked again, in seconds.
_AGAIN_S = 0.1
#: A stream that has lasted this long has reached its broker, in seconds.
_LASTING_S = 1.0
#: How long it tries to reconnect to a broker, in seconds: longer than any grace.
_COME_BACK_S = 30.0
#: Handles that an error shows.
_SHOWN = 3
#: So many acknowledgements do not wait for others, nor does any for longer than this, in seconds.
_MOST_ACKS = 16
_GATHER_S = 0.02
_UNDECIDED = "the messages of queue {} may be settled; settle them again"

#: Called with the outcome of a settle.
Told = Callable[[BaseException | None], object]


class Settlement(NamedTuple):
    """The outcome of messages, and a duration in ms."""

    outcome: broker_pb2.PopOutcome.ValueType
    duration_ms: int = 0


#: See `SimpleConsumer.ack`.
DONE = Settlement(broker_pb2.POP_OUTCOME_DONE)
#: Not looked at: others get them at once, and this delivery counts no try.
RETURNED = Settlement(broker_pb2.POP_OUTCOME_RETURN)


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


class Settler:
    """The streams of a consumer to its brokers, and its settles on them. Lives on the loop of the connection."""

    def __init__(
        self, client: ClusterClient, group: str, client_id: str, timeout_s: float, check_open: Callable[[], None]
    ) -> None:
        self._client = client
        self._connection = client.connection
        self.group, self._client_id = group, client_id
        self.timeout_s = timeout_s
        self._check_open = check_open
        self._callbacks = CallbackThread("minimq-ack-callbacks")
        #: Acknowledgements on their way to the loop, which looks for them once those under way are answered.
        self._acks: deque[_Ack] = deque()
        self._has_acks_under_way = False
        # What follows belongs to the event loop.
        self.in_hand = InHand()
        self._streams: dict[str, PopStream] = {}
        #: When the latest lasting stream to each broker ended.
        self._lost_at: dict[str, float] = {}
        #: What other threads wait for.
        self._unsettled: set[_Settling] = set()
        self._all_settled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended = False
        self._connection.at_end(self._end)

    # ---- on any thread -----------------------------------------------------------------------------

    def settle_and_wait(self, messages: Receivables, how: Settlement) -> None:
        """Settle messages; block until that is on disk."""
        told: SimpleQueue[BaseException | None] = SimpleQueue()
        if self._hand_over(messages, how, told.put) and (error := told.get()) is not None:
            raise error

    async def settle_elsewhere(self, messages: Receivables, how: Settlement) -> None:
        """Do as `settle_and_wait` in a task of another event loop."""
        settled: LoopOutcome[bool] = LoopOutcome(self._client.user_loop())
        if self._hand_over(messages, how, partial(settled.complete, True)):
            await settled.future

    def _hand_over(self, messages: Receivables, how: Settlement, told: Told) -> bool:
        self._check_open()
        receipts = receipts_of(messages, self.group)
        check_no_finalizer()
        if receipts and not self._connection.call_soon(self._begin, receipts, how, told):
            raise Closed(CLOSED)
        return bool(receipts)

    def ack_soon(self, messages: Receivables) -> Future[None]:
        """Acknowledge messages, along with others; return a future that is done when it is on disk.

        The first go at once. Others follow once these are answered, or with the next take, or if they are many: to wake
        the loop for each takes more time than the rest.
        """
        self._check_open()
        acknowledged = _AckFuture(self._callbacks)
        try:
            self._acks.append(_Ack(receipts_of(messages, self.group), acknowledged))
        except InvalidArgument as error:
            acknowledged.set_exception(error)
            return acknowledged
        if not self._has_acks_under_way or len(self._acks) == _MOST_ACKS:
            self._has_acks_under_way = True
            if not self._connection.call_soon(self.send_acks):
                raise Closed(CLOSED)
        return acknowledged

    def drop(self) -> None:
        """Tell all who wait that nobody answers any more."""
        if self._connection.call_soon(self._end):  # else it is called at the end
            self._connection.not_at_end(self._end)
        self._callbacks.close(0)

    # ---- settles -----------------------------------------------------------------------------------

    async def settle(self, messages: Receivables, how: Settlement) -> None:
        """Settle messages, and wait until that is on disk."""
        await self.settle_receipts(receipts_of(messages, self.group), how)

    async def settle_receipts(self, receipts: Receipts, how: Settlement) -> None:
        """Do as `settle`."""
        self._check_open()
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        _Settling(self, receipts, how, partial(_complete, settled)).begin()
        await settled

    def send_acks(self) -> None:
        """Send the acknowledgements that wait for others."""
        # Those of each broker by themselves: nobody waits for a broker that is away and has none of his messages.
        by_broker: dict[frozenset[str], list[_Ack]] = {}
        for _ in range(len(self._acks)):
            ack = self._acks.popleft()
            if ack.acknowledged.set_running_or_notify_cancel():
                by_broker.setdefault(frozenset(queue.broker_name for queue, _ in ack.receipts), []).append(ack)
        for acks in by_broker.values():
            self._begin(united(ack.receipts for ack in acks), DONE, partial(self._acknowledged, acks))
        self._look_for_acks()

    def _acknowledged(self, acks: Sequence[_Ack], error: BaseException | None) -> None:
        if len(acks) > 1 and isinstance(error, MiniMQError) and error.answered:
            for receipts, acknowledged in acks:  # to one of them, perhaps: each hears what is true of its own
                self._begin(receipts, DONE, partial(_complete, acknowledged))
        else:
            for _, acknowledged in acks:
                _complete(acknowledged, error)

    def _look_for_acks(self) -> None:
        if not self._unsettled:
            self._all_settled.set()
            self._has_acks_under_way = False  # first: whoever adds one from here on wakes the loop
            if self._acks:
                self.send_acks()
        elif self._timer is None and self._has_acks_under_way and not self._has_ended:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self.send_acks()

    def _begin(self, receipts: Receipts, how: Settlement, told: Told) -> None:
        if self._has_ended:
            told(Closed(CLOSED))
            return
        settling = _Settling(self, receipts, how, told)
        self._unsettled.add(settling)
        settling.begin()

    def over(self, settling: _Settling, error: BaseException | None) -> None:
        """Tell the outcome."""
        self._unsettled.discard(settling)
        settling.told(error)
        self._look_for_acks()

    def _end(self) -> None:
        self._has_ended = True
        self.send_acks()
        for settling in [*self._unsettled]:
            settling.end(Closed(CLOSED))

    async def wait_all(self) -> None:
        """Wait until everything is settled that other threads wait for."""
        self.send_acks()
        while self._unsettled:
            self._all_settled.clear()
            await self._all_settled.wait()

    async def close(self, timeout_s: float) -> None:
        """End all streams: brokers have heard then that the consumer goes."""
        streams, self._streams = list(self._streams.values()), {}
        await asyncio.gather(*(stream.close(timeout_s) for stream in streams))

    # ---- streams -----------------------------------------------------------------------------------

    def stream(self, address: str) -> PopStream:
        """Return the stream to a broker. Raises `Closed`."""
        stream = former = self._streams.get(address)
        if stream is None or stream.ended:
            self._check_open()
            stream = self._streams[address] = PopStream(
                self._connection, address, self.group, self._client_id, self._stream_ended
            )
            if former is not None and former.is_known:
                stream.hello()  # first of all: whatever follows, the broker does not take it for gone
        return stream

    def _stream_ended(self, stream: PopStream) -> None:
        if self._streams.get(stream.address) is not stream or not stream.is_known:
            return
        now = asyncio.get_running_loop().time()
        if now >= stream.began_at + _LASTING_S:
            self._lost_at[stream.address] = now
        away_s = now - self._lost_at.setdefault(stream.address, now)
        if away_s < _COME_BACK_S:
            asyncio.get_running_loop().call_later(max(_AGAIN_S, away_s / 2), self._come_back, stream)

    def _come_back(self, stream: PopStream) -> None:
        if self._streams.get(stream.address) is stream:  # else somebody was faster, or it is closed
            with suppress(Closed):
                self.stream(stream.address)

    def stream_of(self, queue: MessageQueue) -> PopStream | None:
        """Return the stream to the master of a queue; None if the route has to be asked for first."""
        route = self._client.routes.known(queue.topic)
        if route is None:
            return None
        address = route.master_of(queue.broker_name)
        if address is None:
            raise Unavailable(f"broker {queue.broker_name} of queue {queue} has no master now")
        return self.stream(address)

    def refresh(self, queue: MessageQueue) -> None:
        """Have the route of a queue asked for in the background."""
        self._client.routes.refresh_soon(queue.topic)

    def ask_for_route(self, part: _Part) -> None:
        """Begin a part once its route is known."""
        task = asyncio.create_task(self._begin_with_route(part))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin_with_route(self, part: _Part) -> None:
        try:
            await self._client.routes.find(part.queue.topic)
        except MiniMQError as error:
            part.failed(error)
        else:
            part.begin()


def _complete(future: Future[None] | asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class _Settling:
    """A call that settles messages. It is over with the last of its parts, one for each delivery by a broker."""

    __slots__ = ("_error", "_expired", "_how", "_left", "_receipts", "_settler", "told")

    def __init__(self, settler: Settler, receipts: Receipts, how: Settlement, told: Told) -> None:
        self._settler = settler
        self._receipts, self._how = receipts, how
        self.told = told
        self._left = len(receipts)
        self._expired: list[str] = []
        self._error: MiniMQError | None = None

    def begin(self) -> None:
        """Begin all parts. If their brokers are known, that costs neither a task nor a round of the loop."""
        if not self._receipts:
            self._settler.over(self, None)
        until = asyncio.get_running_loop().time() + self._settler.timeout_s
        for (queue, epoch), spans in self._receipts.items():
            key = SettleKey(queue.topic, queue.queue_id, epoch, *self._how)
            _Part(self._settler, self, queue, key, merged(spans) if len(spans) > 1 else spans, until).begin()

    def part_over(self, expired: Sequence[str], error: MiniMQError | None) -> None:
        """Note the outcome of a part: the handles that do not count any more, or an error."""
        self._left -= 1
        self._expired += expired
        self._error = self._error or error
        if not self._left:
            self._settler.over(self, self._error or self._outcome())

    def end(self, error: BaseException | None) -> None:
        """Tell the outcome; once."""
        self._left = -1
        self._settler.over(self, error)

    def _outcome(self) -> HandleExpired | None:
        in_hand, expired = self._settler.in_hand, self._expired
        if self._how.outcome != broker_pb2.POP_OUTCOME_EXTEND:
            in_hand.settled(self._receipts)
        elif not expired:
            in_hand.extended(self._receipts, self._how.duration_ms / 1000)
        if not expired:
            return None
        shown = ", ".join(expired[:_SHOWN]) + (" ..." if len(expired) > _SHOWN else "")
        return HandleExpired(
            f"{len(expired)} of the messages were handed out again after their invisible duration, or settled "
            f"otherwise, and are not settled by these handles: {shown}",
            expired,
        )


class _Part:
    """The settle of messages of one delivery, which is tried until a time of the loop."""

    __slots__ = ("_key", "_refusal", "_settler", "_spans", "_timer", "_until", "_whole", "queue")

    def __init__(
        self,
        settler: Settler,
        whole: _Settling,
        queue: MessageQueue,
        key: SettleKey,
        spans: Sequence[Span],
        until: float,
    ) -> None:
        self.queue = queue
        self._settler, self._whole = settler, whole
        self._key, self._spans = key, spans
        self._until = until
        #: Of the latest try that was answered.
        self._refusal: MiniMQError | None = None
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_at(until, self._late)

    def begin(self) -> None:
        """Try it, or once more."""
        if self._timer is None:
            return
        try:
            stream = self._settler.stream_of(self.queue)
        except MiniMQError as error:
            self.failed(error)
            return
        if stream is None:
            self._settler.ask_for_route(self)
        else:
            stream.settle(self._key, self._spans, self._answered)

    def _answered(self, expired: Sequence[Span], error: MiniMQError | None) -> None:
        if error is None:
            self._end(expired, None)
        else:
            self.failed(error)

    def failed(self, error: MiniMQError) -> None:
        """Try again later, if that may help."""
        if self._timer is None:
            return
        if error.refresh_route:
            self._settler.refresh(self.queue)
        loop, pause_s = asyncio.get_running_loop(), max(_AGAIN_S, error.retry_after_s)
        if not error.retriable or loop.time() + pause_s >= self._until:
            self._end((), error)
            return
        if error.answered:
            self._refusal = error
        loop.call_later(pause_s, self.begin)

    def _late(self) -> None:
        undecided, limit_s = _UNDECIDED.format(self.queue), self._settler.timeout_s
        if self._refusal is None:
            text = f"broker {self.queue.broker_name} gave no answer within {limit_s:g} s: {undecided}"
            self._end((), DeadlineExceeded(text))
        else:  # it has the cause and the remedy
            text = f"{self._refusal.message}; the last try had no answer when {limit_s:g} s were over: {undecided}"
            self._end((), self._refusal.with_message(text))

    def _end(self, expired: Sequence[Span], error: MiniMQError | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._whole.part_over(self._handles(expired) if expired else (), error)

    def _handles(self, expired: Sequence[Span]) -> list[str]:
        group, epoch = self._settler.group, self._key.epoch
        offsets = [offset for first, end in expired for offset in range(first, end)]
        return [str(ReceiptHandle(group, self.queue, at, epoch)) for at in offsets]
