"""Settles messages by their receipts, at the masters of their queues."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from minimq.connection.client import ClusterClient
from minimq.connection.loop_thread import CLOSED
from minimq.receiving.work_queues.pop_stream import PopStream, SettleKey
from minimq.receiving.work_queues.popped import ReceiptHandle, Receipts, Receivables, Span, merged, receipts_of
from minimq_common.errors import Closed, DeadlineExceeded, HandleExpired, MiniMQError, Unavailable
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2


@dataclass(slots=True)
class _Delivered:
    """Unsettled messages of one delivery by the broker, until a time of the loop."""

    count: int
    until: float


class InHand:
    """Counts what was received and not settled. Lives on the event loop of the connection.

    A suspect is a message that was lost with a consumer. If it ends this one, too, nothing else shall be lost with it.
    """

    def __init__(self) -> None:
        #: About in the order in which their time ends.
        self._delivered: OrderedDict[tuple[MessageQueue, int], _Delivered] = OrderedDict()
        #: The delivery that has a suspect.
        self._suspect: tuple[MessageQueue, int] | None = None
        #: A suspect was refused: what is in hand is to be settled first.
        self._makes_room = False
        self._changed = asyncio.Event()

    def add(self, queue: MessageQueue, epoch: int, count: int, invisible_s: float, *, suspect: bool) -> bool:
        """Add a delivery; return False if it has to be returned: a suspect and other messages may not meet."""
        now = asyncio.get_running_loop().time()
        if suspect or self._is_busy:
            self._makes_room |= suspect
            if self._has_any(now):
                return False
        self._makes_room = False
        self._suspect = (queue, epoch) if suspect else None
        while self._delivered and next(iter(self._delivered.values())).until <= now:
            self._delivered.popitem(last=False)
        self._delivered[queue, epoch] = _Delivered(count, now + invisible_s)
        return True

    def make_room(self) -> None:
        """Let nothing join what is in hand: a suspect waits."""
        self._makes_room = True

    def settled(self, receipts: Receipts) -> None:
        """Note that messages were settled, or are somebody else's."""
        for (queue, epoch), spans in receipts.items():
            if (found := self._delivered.get((queue, epoch))) is not None:
                found.count -= sum(end - first for first, end in spans)
                if found.count <= 0:
                    del self._delivered[queue, epoch]
                    self._changed.set()

    def extended(self, receipts: Receipts, invisible_s: float) -> None:
        """Note that messages stay in hand."""
        until = asyncio.get_running_loop().time() + invisible_s
        for key in receipts:
            if (found := self._delivered.get(key)) is not None:
                found.until = max(found.until, until)
                self._delivered.move_to_end(key)

    async def turn(self, until: float) -> None:
        """Return when more may be received, or at a time of the loop."""
        loop = asyncio.get_running_loop()
        while self._is_busy and self._has_any(now := loop.time()) and now < until:
            self._changed.clear()
            late = min(each.until for each in self._delivered.values())
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, late)):
                    await self._changed.wait()

    @property
    def _is_busy(self) -> bool:
        return self._makes_room or self._suspect in self._delivered

    def _has_any(self, now: float) -> bool:
        for key in [key for key, each in self._delivered.items() if each.until <= now]:
            del self._delivered[key]
        return bool(self._delivered)


#: Delay before a broker that has failed is asked again, in seconds.
_AGAIN_S = 0.1
#: A stream that has lasted this long has reached its broker, in seconds.
_LASTING_S = 1.0
#: How long it tries to reconnect to a broker, in seconds: longer than any grace.
_COME_BACK_S = 30.0
#: Handles that an error shows.
_SHOWN = 3
_UNDECIDED = "the messages of queue {} may be settled; settle them again"


class Settler:
    """The streams of a consumer to its brokers, and its settles on them. Lives on the loop of the connection."""

    def __init__(
        self, client: ClusterClient, group: str, client_id: str, timeout_s: float, check: Callable[[], None]
    ) -> None:
        self._client = client
        self._group, self._client_id = group, client_id
        self._timeout_s = timeout_s
        self._check = check
        self.in_hand = InHand()
        self._streams: dict[str, PopStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: When the latest lasting stream to each broker ended.
        self._lost_at: dict[str, float] = {}

    def stream(self, address: str) -> PopStream:
        """Return the stream to a broker. Raises `Closed`."""
        stream = former = self._streams.get(address)
        if stream is None or stream.ended:
            self._check()
            stream = self._streams[address] = PopStream(
                self._client.connection, address, self._group, self._client_id, self._ended
            )
            if former is not None and former.is_known:
                stream.hello()  # first of all: whatever follows, the broker does not take it for gone
        return stream

    def no_answer(self, queue: MessageQueue) -> DeadlineExceeded:
        """Return the error of a settle whose broker is silent."""
        limit_s, undecided = self._timeout_s, _UNDECIDED.format(queue)
        return DeadlineExceeded(f"broker {queue.broker_name} gave no answer within {limit_s:g} s: {undecided}")

    def _ended(self, stream: PopStream) -> None:
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

    async def close(self, timeout_s: float) -> None:
        """End all streams: brokers have heard then that the consumer goes."""
        streams, self._streams = list(self._streams.values()), {}
        await asyncio.gather(*(stream.close(timeout_s) for stream in streams))

    async def settle(self, what: Receivables, outcome: broker_pb2.PopOutcome.ValueType, duration_ms: int) -> None:
        """Settle messages, and wait until that is on disk."""
        self._check()
        await self.settle_all(receipts_of(what, self._group), outcome, duration_ms)

    async def settle_all(
        self,
        receipts: Receipts,
        outcome: broker_pb2.PopOutcome.ValueType,
        duration_ms: int,
        until: float | None = None,
        failure: MiniMQError | None = None,
    ) -> None:
        """Settle messages, and wait until that is on disk; a first try may have failed."""
        self._check()
        until = self._deadline() if until is None else until
        parts = [
            self._settle_part(queue, epoch, merged(spans), outcome, duration_ms, until, failure)
            for (queue, epoch), spans in receipts.items()
        ]
        outcomes = [await parts[0]] if len(parts) == 1 else await asyncio.gather(*parts, return_exceptions=True)
        expired: list[str] = []
        for part in outcomes:
            if isinstance(part, BaseException):
                raise part
            expired += part
        self._settled(receipts, outcome, duration_ms, expired)

    def begin(
        self,
        receipts: Receipts,
        outcome: broker_pb2.PopOutcome.ValueType,
        duration_ms: int,
        told: Callable[[BaseException | None], object],
    ) -> None:
        """Settle messages; call back once that is on disk, or with the error.

        If their broker is known, the first try costs neither a task nor a round of the loop.
        """
        if len(receipts) == 1:
            [((queue, epoch), spans)] = receipts.items()
            route = self._client.routes.known(queue.topic)
            stream = self._streams.get(route.master_of(queue.broker_name) or "") if route is not None else None
            if stream is not None and not stream.ended:
                first = _FirstTry(self, receipts, outcome, duration_ms, self._deadline(), told)
                stream.begin_settle(
                    SettleKey(queue.topic, queue.queue_id, epoch, outcome, duration_ms), merged(spans), first
                )
                return
        self.begin_slowly(receipts, outcome, duration_ms, self._deadline(), told)

    def begin_slowly(
        self,
        receipts: Receipts,
        outcome: broker_pb2.PopOutcome.ValueType,
        duration_ms: int,
        until: float,
        told: Callable[[BaseException | None], object],
        failure: MiniMQError | None = None,
    ) -> None:
        """Do as `begin`, in a task that tries again until a time of the loop; a first try may have failed."""
        task = asyncio.create_task(self.settle_all(receipts, outcome, duration_ms, until, failure))
        self._tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            told(Closed(CLOSED) if task.cancelled() else task.exception())

        task.add_done_callback(over)

    def first_try_over(self, first: _FirstTry, expired: Sequence[Span]) -> None:
        """Take the answer of a broker to a first try."""
        handles: list[str] = []
        if expired:
            [(queue, epoch)] = first.receipts
            handles = self._handles(queue, epoch, expired)
        error = None
        try:
            self._settled(first.receipts, first.outcome, first.duration_ms, handles)
        except MiniMQError as failure:
            error = failure
        first.told(error)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s

    def _handles(self, queue: MessageQueue, epoch: int, expired: Sequence[Span]) -> list[str]:
        offsets = [offset for first, end in expired for offset in range(first, end)]
        return [str(ReceiptHandle(self._group, queue, offset, epoch)) for offset in offsets]

    def _settled(
        self,
        receipts: Receipts,
        outcome: broker_pb2.PopOutcome.ValueType,
        duration_ms: int,
        expired: Sequence[str],
    ) -> None:
        if outcome == broker_pb2.POP_OUTCOME_EXTEND and not expired:
            self.in_hand.extended(receipts, duration_ms / 1000)
        elif outcome != broker_pb2.POP_OUTCOME_EXTEND:
            self.in_hand.settled(receipts)
        if expired:
            shown = ", ".join(expired[:_SHOWN]) + (" ..." if len(expired) > _SHOWN else "")
            raise HandleExpired(
                f"{len(expired)} of the messages were handed out again after their invisible duration, or settled "
                f"otherwise, and are not settled by these handles: {shown}",
                expired,
            )

    async def _settle_part(
        self,
        queue: MessageQueue,
        epoch: int,
        spans: Sequence[Span],
        outcome: broker_pb2.PopOutcome.ValueType,
        duration_ms: int,
        until: float,
        failure: MiniMQError | None,
    ) -> list[str]:
        key = SettleKey(queue.topic, queue.queue_id, epoch, outcome, duration_ms)
        routes = self._client.connection.routes
        refusal: MiniMQError | None = None
        while True:
            if failure is not None:
                if failure.refresh_route:
                    routes.refresh_soon(queue.topic)
                pause_s = max(_AGAIN_S, failure.retry_after_s)
                if not failure.retriable or asyncio.get_running_loop().time() + pause_s >= until:
                    raise failure
                refusal = failure if failure.answered else refusal
                await asyncio.sleep(pause_s)
            try:
                async with asyncio.timeout_at(until):
                    route = self._client.routes.known(queue.topic) or await routes.route(queue.topic)
                    address = route.master_of(queue.broker_name)
                    if address is None:
                        raise Unavailable(f"broker {queue.broker_name} of queue {queue} has no master now")
                    return self._handles(queue, epoch, await self.stream(address).settle(key, spans))
            except MiniMQError as error:
                failure = error
            except TimeoutError:
                if refusal is None:
                    raise self.no_answer(queue) from None
                raise refusal.with_message(  # it has the cause and the remedy
                    f"{refusal.message}; the last try had no answer when {self._timeout_s:g} s were over: "
                    f"{_UNDECIDED.format(queue)}"
                ) from None


class _FirstTry:
    """The first try of a settle, which waits for its answer until a time of the loop."""

    def __init__(
        self,
        settler: Settler,
        receipts: Receipts,
        outcome: broker_pb2.PopOutcome.ValueType,
        duration_ms: int,
        until: float,
        told: Callable[[BaseException | None], object],
    ) -> None:
        self.receipts, self.outcome, self.duration_ms = receipts, outcome, duration_ms
        self.told = told
        self._settler = settler
        self._until = until
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_at(until, self._late)

    def done(self) -> bool:
        return self._timer is None

    def set_result(self, expired: list[Span], /) -> None:
        self._end()
        self._settler.first_try_over(self, expired)

    def set_exception(self, error: MiniMQError, /) -> None:
        self._end()
        if error.retriable:
            self._settler.begin_slowly(self.receipts, self.outcome, self.duration_ms, self._until, self.told, error)
        else:
            self.told(error)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        [(queue, _)] = self.receipts
        self.told(self._settler.no_answer(queue))
