"""Settles messages by their receipts, at the masters of their queues."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from minimq.connection.client import ClusterClient
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
#: Called with the outcome of a settle.
Told = Callable[[BaseException | None], object]
_UNDECIDED = "the messages of queue {} may be settled; settle them again"


class Settler:
    """The streams of a consumer to its brokers, and its settles on them. Lives on the loop of the connection."""

    def __init__(
        self, client: ClusterClient, group: str, client_id: str, timeout_s: float, check: Callable[[], None]
    ) -> None:
        self._client = client
        self._group, self._client_id = group, client_id
        self.timeout_s = timeout_s
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
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def told(error: BaseException | None) -> None:
            if settled.done():
                return
            if error is None:
                settled.set_result(None)
            else:
                settled.set_exception(error)

        self.begin(receipts_of(what, self._group), outcome, duration_ms, told)
        await settled

    def begin(self, receipts: Receipts, outcome: broker_pb2.PopOutcome.ValueType, duration_ms: int, told: Told) -> None:
        """Settle messages; call back once that is on disk, or with the error.

        If their broker is known, this costs neither a task nor a round of the loop.
        """
        left, expired, errors = len(receipts), list[str](), list[MiniMQError]()

        def over(part: _Part, spans: Sequence[Span], error: MiniMQError | None) -> None:
            nonlocal left
            left -= 1
            expired.extend(part.handles(self._group, spans))
            errors.extend([] if error is None else [error])
            if not left:
                told(errors[0] if errors else self._settled(receipts, outcome, duration_ms, expired))

        if not receipts:
            told(None)
        until = asyncio.get_running_loop().time() + self.timeout_s
        for (queue, epoch), spans in [*receipts.items()]:
            key = SettleKey(queue.topic, queue.queue_id, epoch, outcome, duration_ms)
            _Part(self, queue, key, merged(spans), until, over).begin()

    def _settled(
        self,
        receipts: Receipts,
        outcome: broker_pb2.PopOutcome.ValueType,
        duration_ms: int,
        expired: Sequence[str],
    ) -> HandleExpired | None:
        if outcome == broker_pb2.POP_OUTCOME_EXTEND and not expired:
            self.in_hand.extended(receipts, duration_ms / 1000)
        elif outcome != broker_pb2.POP_OUTCOME_EXTEND:
            self.in_hand.settled(receipts)
        if not expired:
            return None
        shown = ", ".join(expired[:_SHOWN]) + (" ..." if len(expired) > _SHOWN else "")
        return HandleExpired(
            f"{len(expired)} of the messages were handed out again after their invisible duration, or settled "
            f"otherwise, and are not settled by these handles: {shown}",
            expired,
        )

    # ---- for the parts -----------------------------------------------------------------------------

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
            part.set_exception(error)
        else:
            part.begin()


class _Part:
    """The settle of messages of one queue, which is tried until a time of the loop; it takes the broker's answers."""

    def __init__(
        self,
        settler: Settler,
        queue: MessageQueue,
        key: SettleKey,
        spans: Sequence[Span],
        until: float,
        over: Callable[[_Part, Sequence[Span], MiniMQError | None], object],
    ) -> None:
        self.queue = queue
        self._settler = settler
        self._key, self._spans = key, spans
        self._until = until
        self._over = over
        #: Of the latest try that was answered.
        self._refusal: MiniMQError | None = None
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_at(until, self._late)

    def handles(self, group: str, expired: Sequence[Span]) -> list[str]:
        """Return the handles of messages."""
        offsets = [offset for first, end in expired for offset in range(first, end)]
        return [str(ReceiptHandle(group, self.queue, offset, self._key.epoch)) for offset in offsets]

    def begin(self) -> None:
        """Try it, or once more."""
        if self.done():
            return
        try:
            stream = self._settler.stream_of(self.queue)
        except MiniMQError as error:
            self.set_exception(error)
            return
        if stream is None:
            self._settler.ask_for_route(self)
        else:
            stream.begin_settle(self._key, self._spans, self)

    def done(self) -> bool:
        return self._timer is None

    def set_result(self, expired: list[Span], /) -> None:
        self._end(expired, None)

    def set_exception(self, error: MiniMQError, /) -> None:
        if self.done():
            return
        if error.refresh_route:
            self._settler.refresh(self.queue)
        loop, pause_s = asyncio.get_running_loop(), max(_AGAIN_S, error.retry_after_s)
        if not error.retriable or loop.time() + pause_s >= self._until:
            self._end([], error)
            return
        if error.answered:
            self._refusal = error
        loop.call_later(pause_s, self.begin)

    def _late(self) -> None:
        undecided, limit_s = _UNDECIDED.format(self.queue), self._settler.timeout_s
        if self._refusal is None:
            text = f"broker {self.queue.broker_name} gave no answer within {limit_s:g} s: {undecided}"
            self._end([], DeadlineExceeded(text))
        else:  # it has the cause and the remedy
            text = f"{self._refusal.message}; the last try had no answer when {limit_s:g} s were over: {undecided}"
            self._end([], self._refusal.with_message(text))

    def _end(self, expired: Sequence[Span], error: MiniMQError | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._over(self, expired, error)
