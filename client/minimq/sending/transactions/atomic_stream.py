"""The streams of atomic appends, one to each broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from minimq.connection.at_master import answer_of
from minimq.connection.connection import Connection
from minimq.connection.stream import CorrelatedStream, Part
from minimq_common.errors import InternalError
from minimq_common.model import MessageQueue
from minimq_common.wire.rpc import field_head, from_failure
from minimq_proto.v1 import broker_pb2, halves_pb2

_APPENDS = broker_pb2.AtomicAppendRequest.APPENDS_FIELD_NUMBER
_BATCHES = broker_pb2.AtomicAppend.BATCHES_FIELD_NUMBER
_BATCH = broker_pb2.AtomicBatch.BATCH_FIELD_NUMBER
#: Appends that wait travel together up to that many, and that many bytes.
_MOST = 64
_MOST_BYTES = 256 << 10


class AtomicStream(CorrelatedStream[tuple[bytes, ...], broker_pb2.AtomicAppendResponse, broker_pb2.AtomicAppendResult]):
    """Sends atomic appends to one broker. On the event loop of the connection."""

    def __init__(self, connection: Connection, address: str) -> None:
        super().__init__(connection, address, lambda stub: stub.AppendAtomic, _parts, _joined)  # type: ignore[arg-type, return-value]

    async def append(
        self, batches: Sequence[tuple[MessageQueue, bytes]], progress: broker_pb2.AtomicProgress | None
    ) -> broker_pb2.AtomicAppendResult:
        """Have batches stored as a whole, with what a group has consumed."""
        result = await self._result(broker_pb2.AtomicAppend(progress=progress), batches)
        if len(result.batches) != len(batches):
            raise InternalError(f"broker {self.address} answered about other batches")
        return result

    async def end(self, end: halves_pb2.EndHalf) -> halves_pb2.HalfOutcome.ValueType:
        """End a transaction with half messages; return the outcome that stands."""
        return (await self._result(broker_pb2.AtomicAppend(end=end))).outcome

    async def _result(
        self, append: broker_pb2.AtomicAppend, batches: Sequence[tuple[MessageQueue, bytes]] = ()
    ) -> broker_pb2.AtomicAppendResult:
        def request(request_id: int) -> tuple[bytes, ...]:
            append.request_id = request_id
            pieces = [append.SerializeToString()]
            for queue, data in batches:
                batch = broker_pb2.AtomicBatch(topic=queue.topic, queue_id=queue.queue_id)
                about = batch.SerializeToString()
                head = field_head(_BATCH, len(data))
                pieces += [field_head(_BATCHES, len(about) + len(head) + len(data)), about, head, data]
            return field_head(_APPENDS, sum(map(len, pieces))), *pieces

        result: broker_pb2.AtomicAppendResult = await answer_of(partial(self.request, request))
        if result.HasField("failure"):
            raise from_failure(result.failure)
        return result


def _joined(request: tuple[bytes, ...], others: deque[tuple[bytes, ...] | None]) -> tuple[bytes, ...]:
    pieces, size = [*request], sum(map(len, request))
    for _ in range(_MOST - 1):
        other = others[0] if others else None
        if other is None or (size := size + sum(map(len, other))) > _MOST_BYTES:
            break
        others.popleft()
        pieces += other
    return tuple(pieces)


def _parts(response: broker_pb2.AtomicAppendResponse) -> Iterable[Part[broker_pb2.AtomicAppendResult]]:
    return (Part(result.request_id, result) for result in response.results)
