"""Settles messages by their receipts at the masters of their queues."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from minimq.connection.client import ClusterClient
from minimq.connection.loop_thread import CLOSED, set_outcome
from minimq.connection.retry_schedule import MIN_ATTEMPT_S, PAUSE_S, RetrySchedule
from minimq.consuming.broker_sessions import new_run
from minimq.features.work_queues.pop_stream import PopStream, SettleKey
from minimq.features.work_queues.work_queue_message import (
    ReceiptHandle,
    Receipts,
    Receivables,
    Span,
    merged,
    receipts_of,
)
from minimq.sending.callback_thread import CallbackThread
from minimq_common.errors import Closed, DeadlineExceeded, Fenced, HandleExpired, MinimqError, Unavailable
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: A stream that has lasted this long had reached its broker.
_LASTING_S = 1.0
#: How long to try to reconnect to a broker: longer than a usual grace (`--session-grace`).
_COME_BACK_S = 30.0
#: Maximum number of handles in an error.
_SHOWN = 3

#: Called with the error of a settle, or None.
OnSettled = Callable[[MinimqError | None], object]


class Settlement(NamedTuple):
    """The new state of messages, and its duration in ms."""

    outcome: broker_pb2.PopOutcome.ValueType
    duration_ms: int = 0


#: See `WorkQueueConsumer.ack`.
DONE = Settlement(broker_pb2.POP_OUTCOME_DONE)
#: Not processed: others get the messages at once, and the delivery does not count.
RETURNED = Settlement(broker_pb2.POP_OUTCOME_RETURN)


class SettleFuture(Future[None]):
    """Runs callbacks of users on a thread: the event loop that completes it must not run user code."""

    def __init__(self, callbacks: CallbackThread) -> None:
        super().__init__()
        self._callbacks = callbacks

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        super().add_done_callback(lambda future: self._callbacks.run(partial(fn, future)))

    def complete(self, error: MinimqError | None) -> None:
        if not self.set_running_or_notify_cancel():
            return
        if error is None:
            self.set_result(None)
        else:
            self.set_exception(error)


class _Call:
    """The settle of the messages of one call; it has a part for each delivery."""

    def __init__(self, settler: Settler, parts: int, told: OnSettled) -> None:
        self._settler, self._left, self.told = settler, parts, told
        self._expired: list[str] = []
        self._error: MinimqError | None = None

    def part_ended(self, expired: Iterable[str], error: MinimqError | None) -> None:
        self._expired += expired
        self._error = self._error or error
        self._left -= 1
        if self._left <= 0:
            self._settler.ended(self, self._error or self._expiry())

    def _expiry(self) -> HandleExpired | None:
        if not self._expired:
            return None
        shown = ", ".join(self._expired[:_SHOWN]) + (" ..." if len(self._expired) > _SHOWN else "")
        return HandleExpired(
            f"{len(self._expired)} of the messages were redelivered after their invisible duration, or settled before, "
            f"so these handles have expired: {shown}",
            self._expired,
        )


class _Part:
    """The settle of messages of one delivery; repeated until it is answered, or its time is up."""

    _is_over = False

    def __init__(self, settler: Settler, call: _Call, queue: MessageQueue, key: SettleKey, spans: list[Span]) -> None:
        self._settler, self._call, self._queue, self._key = settler, call, queue, key
        self._spans = merged(spans) if len(spans) > 1 else spans
        self._begun_at = time.monotonic()
        self._schedule: RetrySchedule | None = None
        self._attempts = 0
        self._timer: asyncio.TimerHandle | None = None

    def attempt(self) -> None:
        self._attempts += 1
        schedule, limit_s = self._schedule, self._settler.timeout_s
        if schedule is not None:
            limit_s = max(schedule.left_s(time.monotonic()), MIN_ATTEMPT_S)
        try:
            stream = self._settler.known_stream(self._queue)
        except MinimqError as error:
            self._failed(error)
            return
        if stream is None:
            self._settler.run(self._find_route(limit_s))
            return
        self._timer = asyncio.get_running_loop().call_later(limit_s, self._late, limit_s)
        stream.settle(self._key, self._spans, partial(self._answered, self._attempts))

    async def _find_route(self, limit_s: float) -> None:
        try:
            await self._settler.client.routes.find(self._queue.topic, min(limit_s, self._settler.client.timeout_s))
        except MinimqError as error:
            self._failed(error)
        else:
            self.attempt()

    def _late(self, limit_s: float) -> None:
        self._failed(DeadlineExceeded(f"broker {self._queue.broker_name} gave no answer within {limit_s:.1f} s"))

    def _answered(self, attempt: int, expired: Sequence[Span], error: MinimqError | None) -> None:
        if error is None:
            self._end(expired, None)
        elif attempt == self._attempts:  # not one that was given up
            self._failed(error)

    def _failed(self, error: MinimqError) -> None:
        if error.refresh_route:
            self._settler.client.routes.refresh_soon(self._queue.topic)
        if error.retriable:
            text = f"{error.message}; the messages of queue {self._queue} may be settled: settle them again"
            error = error.with_message(text)
        now = time.monotonic()
        self._schedule = self._schedule or RetrySchedule(self._settler.timeout_s, self._begun_at)
        try:
            pause_s = self._schedule.pause_s(error, now)
        except MinimqError as last:
            self._end((), last)
            return
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(pause_s, self.attempt)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, expired: Sequence[Span], error: MinimqError | None) -> None:
        self._stop_timer()
        if self._is_over:
            return
        self._is_over = True
        group, epoch = self._settler.group, self._key.epoch
        handles = [
            str(ReceiptHandle(group, self._queue, offset, epoch))
            for first, end in expired
            for offset in range(first, end)
        ]
        self._call.part_ended(handles, error)


class Settler:
    """Settles the messages of a consumer over its streams to brokers. Lives on the event loop of the connection."""

    def __init__(
        self, client: ClusterClient, group: str, client_id: str, timeout_s: float, check_open: Callable[[], None]
    ) -> None:
        self.client = client
        self._connection = client.connection
        self.group, self._client_id = group, client_id
        #: Tells this consumer from others with its client id.
        self._run = new_run()
        #: Another consumer has taken over the client id.
        self._fenced: Fenced | None = None
        self.timeout_s = timeout_s
        self._check_open = check_open
        self._callbacks = CallbackThread("minimq-ack-callbacks")
        # The rest is changed on the event loop only.
        self._streams: dict[str, PopStream] = {}
        #: By broker address, when its latest lasting stream ended.
        self._lost_at: dict[str, float] = {}
        self._under_way: set[_Call] = set()
        self._all_settled = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended = False
        self._connection.at_end(self._end)

    # ---- settles -----------------------------------------------------------------------------------

    def settle_soon(self, messages: Receivables, how: Settlement) -> Future[None]:
        """Settle messages; return a future that is done once that is on disk. On any thread.

        A broker gets the settles of many calls in one request, which also has the next take.
        """
        self._check_open()
        receipts, settled = receipts_of(messages, self.group), SettleFuture(self._callbacks)
        if not self._connection.call_soon(self._begin, receipts, how, settled.complete):
            raise Closed(CLOSED)
        return settled

    def settling(self, receipts: Receipts, how: Settlement) -> asyncio.Future[None]:
        """Settle messages by their receipts; return a future that is done once that is on disk."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begin(receipts, how, partial(set_outcome, settled, None))
        return settled

    async def settle(self, messages: Receivables, how: Settlement) -> None:
        """Settle messages and wait until that is on disk. It continues if the task is cancelled."""
        await self.settling(receipts_of(messages, self.group), how)

    def _begin(self, receipts: Receipts, how: Settlement, told: OnSettled) -> None:
        if self._has_ended:
            told(Closed(CLOSED))
            return
        call = _Call(self, len(receipts), told)
        self._under_way.add(call)
        for (queue, epoch), spans in receipts.items():
            key = SettleKey(queue.topic, queue.queue_id, epoch, *how)
            _Part(self, call, queue, key, spans).attempt()
        if not receipts:
            self.ended(call, None)

    def ended(self, call: _Call, error: MinimqError | None) -> None:
        if call in self._under_way:
            self._under_way.remove(call)
            call.told(error)
        if not self._under_way:
            self._all_settled.set()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_all(self) -> None:
        """Wait for all settles."""
        while self._under_way:
            self._all_settled.clear()
            await self._all_settled.wait()

    async def close(self, timeout_s: float) -> None:
        """Close all streams, after brokers were told that the consumer leaves."""
        streams, self._streams = list(self._streams.values()), {}
        await asyncio.gather(*(stream.close(timeout_s) for stream in streams))

    def drop(self) -> None:
        """Fail all pending settles with `Closed`. On any thread."""
        if self._connection.call_soon(self._end):  # otherwise the connection calls it when it ends
            self._connection.not_at_end(self._end)
        self._callbacks.close(0)

    def _end(self) -> None:
        self._has_ended = True
        for call in [*self._under_way]:
            self.ended(call, Closed(CLOSED))
        for task in self._tasks:
            task.cancel()
        while self._streams:
            self._streams.popitem()[1].cancel()

    # ---- streams -----------------------------------------------------------------------------------

    def stream(self, address: str) -> PopStream:
        """Return the stream to a broker. Raises `Closed`."""
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)
        stream = former = self._streams.get(address)
        if stream is None or stream.error is not None:
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

    def known_stream(self, queue: MessageQueue) -> PopStream | None:
        """Return the stream to the master of a queue; None if its route is not known. Raises `MinimqError`."""
        route = self.client.routes.known(queue.topic)
        if route is None:
            return None
        address = route.master_of(queue.broker_name)
        if address is None:
            raise Unavailable(f"broker {queue.broker_name} of queue {queue} has no master now")
        return self.stream(address)
