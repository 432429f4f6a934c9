"""The streams of atomic appends, one to each broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

from minimq.connection.at_master import answer_of
from minimq.connection.connection import Connection
from minimq.connection.stream import CorrelatedStream, Part
from minimq_common.errors import InternalError
from minimq_common.model import MessageQueue
from minimq_common.wire.rpc import field_head, from_failure
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
        self, batches: Sequence[tuple[MessageQueue, bytes]], progress: broker_pb2.AtomicProgress | None
    ) -> broker_pb2.AtomicAppendResult:
        """Have batches stored as a whole, with what a group has consumed."""

        def request(request_id: int) -> tuple[bytes, ...]:
            made = broker_pb2.AtomicAppend(request_id=request_id)
            if progress is not None:
                made.progress.CopyFrom(progress)
            pieces = [made.SerializeToString()]
            for queue, data in batches:
                batch = broker_pb2.AtomicBatch(topic=queue.topic, queue_id=queue.queue_id)
                about = batch.SerializeToString()
                head = field_head(_BATCH, len(data))
                pieces += [field_head(_BATCHES, len(about) + len(head) + len(data)), about, head, data]
            return field_head(_APPENDS, sum(map(len, pieces))), *pieces

        result: broker_pb2.AtomicAppendResult = await answer_of(partial(self.request, request))
        if result.HasField("failure"):
            raise from_failure(result.failure)
        if len(result.batches) != len(batches):
            raise InternalError(f"broker {self._address} answered about other batches")
        return result

    def _respond(self, response: broker_pb2.AtomicAppendResponse) -> None:
        self._under_way -= len(response.results)
        self._flush_soon()
        super()._respond(response)

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
