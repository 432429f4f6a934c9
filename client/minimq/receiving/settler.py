"""Settles messages by their receipts, at the masters of their queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from minimq.connection.client import ClusterClient
from minimq.receiving.in_hand import InHand
from minimq.receiving.pop_stream import PopStream, SettleKey, Span, merged
from minimq.receiving.receipt_handle import ReceiptHandle
from minimq.receiving.receipts import Receipts, Receivables, receipts_of
from minimq_common.errors import Closed, DeadlineExceeded, HandleExpired, MiniMQError, Unavailable
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
        await self.settle_all(receipts_of(what, self._group), outcome, duration_ms)

    async def acknowledge(self, receipts: Receipts) -> None:
        """Acknowledge messages, and wait until that is on disk. Raises as `settle_all`."""
        self._check()
        await self.settle_all(receipts, broker_pb2.POP_OUTCOME_DONE, 0)

    async def settle_all(self, receipts: Receipts, outcome: broker_pb2.PopOutcome.ValueType, duration_ms: int) -> None:
        """Settle messages, and wait until that is on disk."""
        self._check()
        parts = [
            self._settle_part(queue, epoch, merged(spans), outcome, duration_ms)
            for (queue, epoch), spans in receipts.items()
        ]
        outcomes = [await parts[0]] if len(parts) == 1 else await asyncio.gather(*parts, return_exceptions=True)
        expired: list[str] = []
        for part in outcomes:
            if isinstance(part, BaseException):
                raise part
            expired += part
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
    ) -> list[str]:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout_s
        key = SettleKey(queue.topic, queue.queue_id, epoch, outcome, duration_ms)
        routes = self._client.connection.routes
        refusal: MiniMQError | None = None
        while True:
            try:
                async with asyncio.timeout_at(until):
                    route = self._client.routes.known(queue.topic) or await routes.route(queue.topic)
                    address = route.master_of(queue.broker_name)
                    if address is None:
                        raise Unavailable(f"broker {queue.broker_name} of queue {queue} has no master now")
                    expired = await self.stream(address).settle(key, spans)
                    offsets = [offset for first, end in expired for offset in range(first, end)]
                    return [str(ReceiptHandle(self._group, queue, offset, epoch)) for offset in offsets]
            except MiniMQError as error:
                if error.refresh_route:
                    routes.refresh_soon(queue.topic)
                pause_s = max(_AGAIN_S, error.retry_after_s)
                if not error.retriable or loop.time() + pause_s >= until:
                    raise
                refusal = error if error.answered else refusal
            except TimeoutError:
                limit_s = self._timeout_s
                undecided = f"the messages of queue {queue} may be settled; settle them again"
                if refusal is not None:  # it has the cause and the remedy
                    raise refusal.with_message(
                        f"{refusal.message}; the last try had no answer when {limit_s:g} s were over: {undecided}"
                    ) from None
                raise DeadlineExceeded(
                    f"broker {queue.broker_name} gave no answer within {limit_s:g} s: {undecided}"
                ) from None
            await asyncio.sleep(pause_s)
