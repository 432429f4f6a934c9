"""The stream to one broker on which a consumer takes and settles messages."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from minimq.connection.connection import Connection
from minimq.connection.stream import Stream
from minimq.features.work_queues.work_queue_message import OpenedMessageCache, Span, merged
from minimq_common.errors import Closed, MinimqError, Unavailable
from minimq_common.wire.protocol_bounds import MAX_SETTLES, MAX_SPANS
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import broker_pb2, work_queues_pb2


class SettleKey(NamedTuple):
    """The delivery and the outcome of a settle; settles with the same key can be merged."""

    topic: str
    queue_id: int
    epoch: int
    outcome: broker_pb2.PopOutcome.ValueType
    duration_ms: int


#: Called with the spans whose handles have expired, or an error.
Answered = Callable[[Sequence[Span], MinimqError | None], object]


class _Waiter(NamedTuple):
    spans: Sequence[Span]
    answered: Answered


class PopStream:
    """Takes and settles messages at one broker, for one group. Lives on the event loop of the connection."""

    def __init__(
        self,
        connection: Connection,
        address: str,
        group: str,
        client_id: str,
        run: int,
        on_end: Callable[[PopStream], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._request = partial(work_queues_pb2.PopRequest, group=group, client_id=client_id, run=run)
        self.address = address
        self.began_at = self._loop.time()
        self._on_end = on_end
        self.is_known = False
        self._ids = itertools.count(1)
        #: By id, the topic and the answer.
        self._takes: dict[int, tuple[str, asyncio.Future[work_queues_pb2.PoppedMessages]]] = {}
        self._waiting: dict[SettleKey, list[_Waiter]] = {}
        #: Halves of merged settles that the broker rejected: repeated halving isolates the faulty one.
        self._suspects: deque[tuple[SettleKey, list[_Waiter]]] = deque()
        self._settling: dict[int, tuple[SettleKey, list[_Waiter]]] = {}
        #: Why it has ended.
        self.error: MinimqError | None = None
        self.opened = OpenedMessageCache()
        self._answered = asyncio.Event()
        self._over = asyncio.Event()
        self._stream: Stream[work_queues_pb2.PopRequest, work_queues_pb2.PopResponse] = Stream(
            connection, address, lambda stub: stub.of(work_queues_pb2).Pop, self._respond, self._ended
        )

    async def take(self, take: work_queues_pb2.PopTake) -> work_queues_pb2.PoppedMessages:
        """Take messages. After a cancellation, messages that still arrive are returned to the broker."""
        if self.error is not None:
            raise self.error
        self.is_known = True
        take.id = next(self._ids)
        answer: asyncio.Future[work_queues_pb2.PoppedMessages] = self._loop.create_future()
        self._takes[take.id] = take.topic, answer
        self._send(self._next_settles(), [take])
        try:
            return await answer
        except asyncio.CancelledError:
            if take.id in self._takes:
                self._cancel_take(take.id)
            elif not answer.cancelled() and answer.exception() is None:
                self.give_back(take.topic, answer.result())
            raise

    def hello(self) -> None:
        """Announce the consumer to the broker, without a take or a settle."""
        self.is_known = True
        self._cancel_take(next(self._ids))

    def settle(self, key: SettleKey, spans: Sequence[Span], answered: Answered) -> None:
        """Settle messages; call back once that is on disk. The stream must not have ended."""
        self._waiting.setdefault(key, []).append(_Waiter(spans, answered))
        if not self._settling:
            self._flush()

    def give_back(self, topic: str, popped: work_queues_pb2.PoppedMessages) -> None:
        """Return messages without a receiver to the broker. Does not wait."""
        if popped.runs and self.error is None:
            key = SettleKey(topic, popped.queue_id, popped.epoch, broker_pb2.POP_OUTCOME_RETURN, 0)
            self.settle(key, [(run.first, run.first + run.count) for run in popped.runs], _ignore)

    async def close(self, timeout_s: float) -> None:
        """Announce that the consumer leaves, and wait until the broker has processed that."""
        if self.error is not None:
            return
        for number, (_, answer) in self._takes.items():
            if not answer.done():
                answer.set_exception(Closed("the consumer is closed"))
                self._cancel_take(number)
        self._flush()
        self._stream.add(self._request(leaves=True))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while self._takes or self._waiting or self._suspects or self._settling:
                        self._answered.clear()
                        await self._answered.wait()
                    self._stream.finish()
                    await self._over.wait()
        finally:  # also if the caller was cancelled
            self.cancel()

    def cancel(self) -> None:
        self._stream.cancel()

    # ---- requests ------------------------------------------------------------------------------------

    def _send(self, settles: Sequence[broker_pb2.PopSettle], takes: Sequence[work_queues_pb2.PopTake] = ()) -> None:
        self._stream.add(self._request(settles=settles, takes=takes))

    def _cancel_take(self, number: int) -> None:
        self._stream.add(self._request(cancels=[number]))

    def _flush(self) -> None:
        while (self._waiting or self._suspects) and self.error is None and (settles := self._next_settles()):
            self._send(settles)

    def _next_settles(self) -> list[broker_pb2.PopSettle]:
        found: list[broker_pb2.PopSettle] = []
        while self._suspects and len(self._settling) < MAX_SETTLES:
            found.append(self._settle(*self._suspects.popleft()))
        while self._waiting and len(found) < MAX_SETTLES:
            key = next(iter(self._waiting))
            waiters = self._waiting.pop(key)
            number, count = 1, len(waiters[0].spans)
            while number < len(waiters) and count + len(waiters[number].spans) <= MAX_SPANS:
                count += len(waiters[number].spans)
                number += 1
            if number < len(waiters):
                self._waiting[key] = waiters[number:]
            found.append(self._settle(key, waiters[:number]))
        return found

    def _settle(self, key: SettleKey, waiters: list[_Waiter]) -> broker_pb2.PopSettle:
        spans = waiters[0].spans if len(waiters) == 1 else merged(span for each in waiters for span in each.spans)
        settle = broker_pb2.PopSettle(
            id=next(self._ids),
            topic=key.topic,
            queue_id=key.queue_id,
            epoch=key.epoch,
            outcome=key.outcome,
            duration_ms=key.duration_ms,
        )
        for first, end in spans:
            settle.spans.extend((first, end - first))
        self._settling[settle.id] = key, waiters
        return settle

    # ---- answers -------------------------------------------------------------------------------------

    def _respond(self, response: work_queues_pb2.PopResponse) -> None:
        for result in response.results:
            failure = from_failure(result.failure) if result.HasField("failure") else None
            if result.id in self._takes:
                self._taken(result, failure)
            elif result.id in self._settling:
                self._settled(result, failure)
        if (self._waiting or self._suspects) and not self._settling:
            self._flush()
        self._answered.set()

    def _taken(self, result: work_queues_pb2.PopResult, failure: MinimqError | None) -> None:
        topic, answer = self._takes.pop(result.id)
        if answer.done():  # the take was cancelled
            self.give_back(topic, result.popped)
        elif failure is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(result.popped)

    def _settled(self, result: work_queues_pb2.PopResult, failure: MinimqError | None) -> None:
        key, waiters = self._settling.pop(result.id)
        if failure is not None and len(waiters) > 1:
            half = len(waiters) // 2
            self._suspects += [(key, waiters[:half]), (key, waiters[half:])]
            return
        expired: list[Span] = []
        if result.expired:
            turns = iter(result.expired)
            expired = [(first, first + count) for first, count in zip(turns, turns, strict=True)]
        for waiter in waiters:
            waiter.answered(_common(waiter.spans, expired) if expired else (), failure)

    def _ended(self, error: MinimqError | None) -> None:
        self.error = error or Unavailable(f"broker {self.address} ended the connection")
        self._over.set()
        self._answered.set()
        waiters = [waiter for part in self._waiting.values() for waiter in part]
        waiters += [waiter for _, part in self._settling.values() for waiter in part]
        waiters += [waiter for _, part in self._suspects for waiter in part]
        takes = [*self._takes.values()]
        self._waiting, self._settling, self._takes = {}, {}, {}
        self._suspects.clear()
        for _, answer in takes:
            if not answer.done():
                answer.set_exception(self.error)
                answer.exception()  # retrieved, in case no caller waits
        for waiter in waiters:
            waiter.answered((), self.error)
        self._on_end(self)


def _ignore(expired: Sequence[Span], error: MinimqError | None) -> None:
    """Ignore the outcome: messages that could not be returned are redelivered after their invisible duration."""


def _common(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    return [
        (max(first, start), min(end, stop))
        for first, end in spans
        for start, stop in others
        if max(first, start) < min(end, stop)
    ]
