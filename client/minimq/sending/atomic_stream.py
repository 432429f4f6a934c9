"""The streams of atomic appends, one to each broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from minimq.connection.connection import Connection
from minimq.connection.stream import CorrelatedStream, Part
from minimq_common.errors import DeadlineExceeded, InternalError, MiniMQError
from minimq_common.large_fields import field_head
from minimq_common.model import MessageQueue
from minimq_common.rpc import from_failure
from minimq_proto.v1 import broker_pb2

_APPENDS = broker_pb2.AtomicAppendRequest.APPENDS_FIELD_NUMBER
_BATCHES = broker_pb2.AtomicAppend.BATCHES_FIELD_NUMBER
_BATCH = broker_pb2.AtomicBatch.BATCH_FIELD_NUMBER
#: Appends travel together up to that many, and that many bytes.
_MOST = 64
_MOST_BYTES = 256 << 10
#: While more than so many times as many are under way, others gather: a request costs as much as several appends.
_UNDER_WAY = 4


class AtomicStream(CorrelatedStream[tuple[bytes, ...], broker_pb2.AtomicAppendResponse, broker_pb2.AtomicAppendResult]):
    """Sends atomic appends to one broker. On the event loop of the connection."""

    def __init__(self, connection: Connection, address: str) -> None:
        super().__init__(connection, address, lambda stub: stub.AppendAtomic, _parts)  # type: ignore[arg-type, return-value]
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[bytes, ...]] = []
        self._under_way = 0
        self._is_flushing = False

    async def append(
        self,
        batches: Sequence[tuple[MessageQueue, bytes]],
        progress: broker_pb2.AtomicProgress | None,
        timeout_s: float,
    ) -> broker_pb2.AtomicAppendResult:
        """Have batches stored as a whole, with what a group has consumed."""
        answer: asyncio.Future[broker_pb2.AtomicAppendResult] = asyncio.get_running_loop().create_future()

        def take(result: broker_pb2.AtomicAppendResult | None, error: MiniMQError | None) -> None:
            self._under_way -= 1
            self._flush_soon()
            if answer.done():
                return
            if result is None:
                answer.set_exception(error or InternalError(f"broker {self._address} gave an empty answer"))
            elif result.HasField("failure"):
                answer.set_exception(from_failure(result.failure))
            elif len(result.batches) != len(batches):
                answer.set_exception(InternalError(f"broker {self._address} answered about other batches"))
            else:
                answer.set_result(result)

        def request(request_id: int) -> tuple[bytes, ...]:
            made = broker_pb2.AtomicAppend(request_id=request_id)
            if progress is not None:
                made.progress.CopyFrom(progress)
            pieces = [made.SerializeToString()]
            for queue, data in batches:
                about = broker_pb2.AtomicBatch(topic=queue.topic, queue_id=queue.queue_id).SerializeToString()
                head = field_head(_BATCH, len(data))
                pieces += [field_head(_BATCHES, len(about) + len(head) + len(data)), about, head, data]
            return field_head(_APPENDS, sum(map(len, pieces))), *pieces

        self.request(request, take)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            error = DeadlineExceeded(f"broker {self._address} gave no answer within {timeout_s:.1f} s")
            self.fail(error)  # what else is under way there waits for the same
            raise error from None

    def _send(self, request: tuple[bytes, ...]) -> None:
        self._gathered.append(request)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flushing and self._gathered:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        while self._gathered and _UNDER_WAY * len(self._gathered) >= self._under_way:
            pieces: list[bytes] = []
            size = count = 0
            for request in self._gathered[:_MOST]:
                pieces += request
                size += sum(map(len, request))
                count += 1
                if size >= _MOST_BYTES:
                    break
            del self._gathered[:count]
            self._under_way += count
            self._stream.send(tuple(pieces))


def _parts(response: broker_pb2.AtomicAppendResponse) -> Iterable[Part[broker_pb2.AtomicAppendResult]]:
    return (Part(result.request_id, result) for result in response.results)
