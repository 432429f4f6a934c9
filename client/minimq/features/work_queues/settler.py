"""Settles messages by their receipts at the masters of their queues; merges acknowledgements of many calls."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from minimq.connection.client import ClusterClient
from minimq.connection.client_log import client_logger
from minimq.connection.loop_calls import LoopRequest, answer_of, resolve
from minimq.connection.loop_thread import CLOSED
from minimq.connection.master_calls import tried
from minimq.connection.retry_schedule import PAUSE_S
from minimq.consuming.broker_sessions import new_run
from minimq.features.work_queues.pop_stream import PopStream, SettleKey
from minimq.features.work_queues.work_queue_message import (
    ReceiptHandle,
    Receipts,
    Receivables,
    Span,
    merged,
    receipts_of,
    united,
)
from minimq.sending.callback_thread import CallbackThread
from minimq_common.errors import (
    Closed,
    DeadlineExceeded,
    Fenced,
    HandleExpired,
    InvalidArgument,
    MinimqError,
    Unavailable,
)
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

log = client_logger(__name__)

#: A stream that has lasted this long had reached its broker.
_LASTING_S = 1.0
#: How long to try to reconnect to a broker: longer than a usual grace (`--session-grace`).
_COME_BACK_S = 30.0
#: Maximum number of handles in an error.
_SHOWN = 3
#: Acknowledgements wait for others until there are this many, or for at most `_GATHER_S`.
_MAX_WAITING_ACKS = 16
_GATHER_S = 0.02

#: Called with the error of a settle, or None.
OnSettled = Callable[[BaseException | None], object]


class Settlement(NamedTuple):
    """The new state of messages, and its duration in ms."""

    outcome: broker_pb2.PopOutcome.ValueType
    duration_ms: int = 0


#: See `WorkQueueConsumer.ack`.
DONE = Settlement(broker_pb2.POP_OUTCOME_DONE)
#: Not processed: others get the messages at once, and the delivery does not count.
RETURNED = Settlement(broker_pb2.POP_OUTCOME_RETURN)


class _AckFuture(Future[None]):
    """Runs callbacks of users on a thread: the event loop that completes it must not run user code."""

    def __init__(self, callbacks: CallbackThread) -> None:
        super().__init__()
        self._callbacks = callbacks

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        super().add_done_callback(lambda future: self._callbacks.run(partial(fn, future)))


class _Ack(NamedTuple):
    receipts: Receipts
    acknowledged: _AckFuture


@dataclass(slots=True)
class _Delivered:
    """The number of unsettled messages of one delivery, invisible until a time of the loop."""

    count: int
    until: float


class InFlightMessages:
    """Counts received, unsettled messages, and keeps suspects alone. Lives on the event loop of the connection.

    A suspect is a message whose consumer died. If it kills this consumer, too, no other message should be lost with it.
    """

    def __init__(self) -> None:
        #: Roughly ordered by `until`.
        self._delivered: OrderedDict[tuple[MessageQueue, int], _Delivered] = OrderedDict()
        #: The delivery of a suspect.
        self._suspect: tuple[MessageQueue, int] | None = None
        #: A suspect waits: receive nothing until all messages in flight are settled.
        self._suspect_waits = False
        self._changed = asyncio.Event()

    def add(self, queue: MessageQueue, epoch: int, count: int, invisible_s: float, *, suspect: bool) -> bool:
        """Add a delivery; return False if it must be returned, to keep a suspect alone."""
        now = asyncio.get_running_loop().time()
        if suspect or self._is_busy:
            self._suspect_waits |= suspect
            if self._has_any(now):
                return False
        self._suspect_waits = False
        self._suspect = (queue, epoch) if suspect else None
        while self._delivered and next(iter(self._delivered.values())).until <= now:
            self._delivered.popitem(last=False)
        self._delivered[queue, epoch] = _Delivered(count, now + invisible_s)
        return True

    def make_room(self) -> None:
        """Receive nothing until the messages in flight are settled: a suspect waits."""
        self._suspect_waits = True

    def settled(self, receipts: Receipts) -> None:
        for (queue, epoch), spans in receipts.items():
            if (found := self._delivered.get((queue, epoch))) is not None:
                for first, end in spans:
                    found.count -= end - first
                if found.count <= 0:
                    del self._delivered[queue, epoch]
                    self._changed.set()

    def extended(self, queue: MessageQueue, epoch: int, invisible_s: float) -> None:
        """Record that the invisible duration of messages of one delivery begins anew."""
        if (found := self._delivered.get((queue, epoch))) is not None:
            found.until = max(found.until, asyncio.get_running_loop().time() + invisible_s)
            self._delivered.move_to_end((queue, epoch))

    async def turn(self, until: float) -> None:
        """Wait until more may be received, or until a time of the loop."""
        loop = asyncio.get_running_loop()
        while self._is_busy and self._has_any(now := loop.time()) and now < until:
            self._changed.clear()
            late = min(each.until for each in self._delivered.values())
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, late)):
                    await self._changed.wait()

    @property
    def _is_busy(self) -> bool:
        return self._suspect_waits or self._suspect in self._delivered

    def _has_any(self, now: float) -> bool:
        for key in [key for key, each in self._delivered.items() if each.until <= now]:
            del self._delivered[key]
        return bool(self._delivered)


class Settler:
    """Settles the messages of a consumer over its streams to brokers. Lives on the event loop of the connection."""

    def __init__(
        self, client: ClusterClient, group: str, client_id: str, timeout_s: float, check_open: Callable[[], None]
    ) -> None:
        self._client = client
        self._connection = client.connection
        self.group, self._client_id = group, client_id
        #: Tells this consumer from others with its client id.
        self._run = new_run()
        #: Another consumer has taken over the client id.
        self._fenced: Fenced | None = None
        self.timeout_s = timeout_s
        self._check_open = check_open
        self._callbacks = CallbackThread("minimq-ack-callbacks")
        #: Acknowledgements on their way to the loop, which sends them once those in flight are answered.
        self._acks: deque[_Ack] = deque()
        #: How often the loop has sent them, and the count for which it was woken; equal if a wake-up is pending.
        self._sends, self._woken = 0, -1
        # The rest is changed on the event loop only.
        self._has_acks_under_way = False
        self.in_flight = InFlightMessages()
        self._streams: dict[str, PopStream] = {}
        #: By broker address, when its latest lasting stream ended.
        self._lost_at: dict[str, float] = {}
        #: Settles that other threads wait for.
        self._unsettled: set[asyncio.Task[None]] = set()
        self._all_settled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._connection.at_end(self._end)

    # ---- on any thread -----------------------------------------------------------------------------

    def settling(self, messages: Receivables, how: Settlement) -> LoopRequest[None]:
        """Return the request that settles messages; it is answered once that is on disk."""
        self._check_open()
        receipts = receipts_of(messages, self.group)
        return LoopRequest(self._client, lambda take: self._begin(receipts, how, partial(take, None)))

    def ack_soon(self, messages: Receivables) -> Future[None]:
        """Acknowledge messages together with those of other calls; return a future that is done when it is on disk.

        The first acknowledgement is sent at once. Later ones are sent when it is answered, with the next take, after
        `_GATHER_S`, or when there are many: waking the loop for each would cost more than everything else.
        """
        self._check_open()
        acknowledged = _AckFuture(self._callbacks)
        try:
            self._acks.append(_Ack(receipts_of(messages, self.group), acknowledged))
        except InvalidArgument as error:
            acknowledged.set_exception(error)
            return acknowledged
        sends = self._sends
        if self._woken != sends and (not self._has_acks_under_way or len(self._acks) >= _MAX_WAITING_ACKS):
            if not self._connection.call_soon(self.send_acks):
                raise Closed(CLOSED)
            self._woken = sends  # last: if Ctrl-C comes before, the next acknowledgement wakes the loop
        return acknowledged

    def drop(self) -> None:
        """Fail all pending settles with `Closed`."""
        if self._connection.call_soon(self._end):  # otherwise the connection calls it when it ends
            self._connection.not_at_end(self._end)
        self._callbacks.close(0)

    # ---- settles -----------------------------------------------------------------------------------

    async def settle(self, messages: Receivables, how: Settlement) -> None:
        """Settle messages and wait until that is on disk."""
        await self.settle_receipts(receipts_of(messages, self.group), how)

    async def settle_receipts(self, receipts: Receipts, how: Settlement) -> None:
        """Do as `settle`, by receipts."""
        self._check_open()
        await self._settle(receipts, how)

    async def _settle(self, receipts: Receipts, how: Settlement) -> None:
        parts = [self._settle_part(queue, epoch, spans, how) for (queue, epoch), spans in receipts.items()]
        # A single part needs no task.
        outcomes = [await parts[0]] if len(parts) == 1 else await asyncio.gather(*parts, return_exceptions=True)
        expired: list[str] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            expired += outcome
        if expired:
            shown = ", ".join(expired[:_SHOWN]) + (" ..." if len(expired) > _SHOWN else "")
            raise HandleExpired(
                f"{len(expired)} of the messages were redelivered after their invisible duration, or settled before, "
                f"so these handles have expired: {shown}",
                expired,
            )

    async def _settle_part(self, queue: MessageQueue, epoch: int, spans: list[Span], how: Settlement) -> list[str]:
        spans = merged(spans) if len(spans) > 1 else spans
        once = partial(self._try, queue, SettleKey(queue.topic, queue.queue_id, epoch, *how), spans)
        is_extended = how.outcome == broker_pb2.POP_OUTCOME_EXTEND
        try:
            expired = await tried(once, self.timeout_s)
        except asyncio.CancelledError:
            if not is_extended:  # the caller is done with them, whatever the outcome
                self.in_flight.settled({(queue, epoch): spans})
            raise
        if not is_extended:
            self.in_flight.settled({(queue, epoch): spans})
        elif len(expired) < sum(end - first for first, end in spans):
            self.in_flight.extended(queue, epoch, how.duration_ms / 1000)
        return expired

    async def _try(self, queue: MessageQueue, key: SettleKey, spans: Sequence[Span], left_s: float) -> list[str]:
        until = time.monotonic() + left_s
        try:
            stream = await self.stream_of(queue, left_s)
            expired: Sequence[Span] = await answer_of(partial(stream.settle, key, spans), until - time.monotonic())
        except MinimqError as failure:
            error = failure
        except TimeoutError:
            error = DeadlineExceeded(f"broker {queue.broker_name} gave no answer within {left_s:.1f} s")
        else:
            return [
                str(ReceiptHandle(self.group, queue, offset, key.epoch))
                for first, end in expired
                for offset in range(first, end)
            ]
        if error.refresh_route:
            self._client.routes.refresh_soon(queue.topic)
        if not error.retriable:
            raise error
        text = f"{error.message}; the messages of queue {queue} may be settled: settle them again"
        raise error.with_message(text) from None

    async def send_acks_first(self) -> None:
        """Send waiting acknowledgements before the request that the caller sends next."""
        if self._acks:
            self.send_acks()
        if self._unsettled:
            for _ in range(2):  # loop iterations: a settle starts in the next one; if it has several parts, they follow
                await asyncio.sleep(0)

    def send_acks(self) -> None:
        self._sends += 1  # first: an acknowledgement added from here on wakes the loop again
        # Separately per broker, so that a broker that is offline delays only acknowledgements of its own messages.
        by_broker: dict[frozenset[str], list[_Ack]] = {}
        for _ in range(len(self._acks)):
            ack = self._acks.popleft()
            if ack.acknowledged.set_running_or_notify_cancel():
                by_broker.setdefault(frozenset(queue.broker_name for queue, _ in ack.receipts), []).append(ack)
        for acks in by_broker.values():
            self._has_acks_under_way = True
            self._begin(united(ack.receipts for ack in acks), DONE, partial(self._acknowledged, acks))
        self._schedule_acks()

    def _acknowledged(self, acks: Sequence[_Ack], error: BaseException | None) -> None:
        if len(acks) > 1 and isinstance(error, MinimqError) and error.answered:
            for receipts, acknowledged in acks:  # repeat one by one: the error may concern only some of them
                self._begin(receipts, DONE, partial(resolve, acknowledged, None))
        else:
            for _, acknowledged in acks:
                resolve(acknowledged, None, error)

    def _schedule_acks(self) -> None:
        if not self._unsettled:
            self._all_settled.set()
            self._has_acks_under_way = False  # first: an acknowledgement added from here on wakes the loop
            if self._acks:
                self.send_acks()
        elif self._timer is None and self._has_acks_under_way and not self._has_ended:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self.send_acks()

    def _begin(self, receipts: Receipts, how: Settlement, told: OnSettled) -> None:
        if self._has_ended:
            told(Closed(CLOSED))
            return
        task = asyncio.create_task(self._settle(receipts, how))
        self._unsettled.add(task)
        task.add_done_callback(partial(self._over, told))

    def _over(self, told: OnSettled, task: asyncio.Task[None]) -> None:
        self._unsettled.discard(task)
        if task.cancelled():  # perhaps before it has run at all
            told(Closed(CLOSED))
        else:
            error = task.exception()
            told(error and error.with_traceback(None))
        self._schedule_acks()

    def _end(self) -> None:
        self._has_ended = True
        self.send_acks()
        for task in self._unsettled:
            task.cancel()
        while self._streams:
            self._streams.popitem()[1].cancel()

    async def wait_all(self) -> None:
        """Wait for all settles of other threads."""
        self.send_acks()
        while self._unsettled:
            self._all_settled.clear()
            await self._all_settled.wait()

    async def close(self, timeout_s: float) -> None:
        """Close all streams, after brokers were told that the consumer leaves."""
        streams, self._streams = list(self._streams.values()), {}
        await asyncio.gather(*(stream.close(timeout_s) for stream in streams))

    # ---- streams -----------------------------------------------------------------------------------

    def stream(self, address: str) -> PopStream:
        """Return the stream to a broker. Raises `Closed`."""
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)
        stream = former = self._streams.get(address)
        if stream is None or stream.ended:
            self._check_open()
            stream = self._streams[address] = PopStream(
                self._connection, address, self.group, self._client_id, self._run, self._stream_ended
            )
            if former is not None and former.is_known:
                stream.hello()  # at once, so that the broker does not count the consumer as gone
        return stream

    def _stream_ended(self, stream: PopStream) -> None:
        if isinstance(stream.error, Fenced) and self._fenced is None:
            self._fenced = stream.error
            text = "consumer: has ended group=%s client=%s reason=%s"
            log.error(text, self.group, self._client_id, stream.error)
        if self._streams.get(stream.address) is not stream or not stream.is_known:
            return
        now = asyncio.get_running_loop().time()
        if now >= stream.began_at + _LASTING_S:
            self._lost_at[stream.address] = now
        offline_s = now - self._lost_at.setdefault(stream.address, now)
        if offline_s < _COME_BACK_S:
            asyncio.get_running_loop().call_later(max(PAUSE_S, offline_s / 2), self._reconnect, stream)

    def _reconnect(self, stream: PopStream) -> None:
        if self._streams.get(stream.address) is stream:  # neither replaced nor closed since
            with suppress(Closed, Fenced):
                self.stream(stream.address)

    async def stream_of(self, queue: MessageQueue, timeout_s: float) -> PopStream:
        """Return the stream to the master of a queue. Raises `MinimqError`."""
        routes, timeout_s = self._client.routes, min(timeout_s, self._client.timeout_s)
        route = routes.known(queue.topic) or await routes.find(queue.topic, timeout_s)
        address = route.master_of(queue.broker_name)
        if address is None:
            raise Unavailable(f"broker {queue.broker_name} of queue {queue} has no master now")
        return self.stream(address)
