"""The append streams to brokers, which match results to requests by id."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from minimq.connection.connection import Connection
from minimq.connection.stream import CorrelatedStream
from minimq.sending.due_times import DueTime
from minimq.sending.transactions.decisions import Transaction
from minimq_common.errors import Closed, MiniMQError
from minimq_common.model import MessageQueue
from minimq_common.wire.rpc import field_head, from_failure
from minimq_proto.v1 import broker_pb2

#: Called with the result, or with the error.
Answer = Callable[[broker_pb2.AppendResult | None, MiniMQError | None], None]

_BATCH = broker_pb2.AppendRequest.BATCH_FIELD_NUMBER
_JOINED = broker_pb2.AppendRequest.JOINED_FIELD_NUMBER
#: Requests travel together up to so many, and so many bytes: a write costs as much as ten small ones.
_MOST_JOINED = 64
_MOST_JOINED_BYTES = 32 << 10


class AppendStream(CorrelatedStream[tuple[bytes, ...], broker_pb2.AppendResponse, broker_pb2.AppendResult]):
    """Sends batches to one broker, on the event loop of the connection."""

    def __init__(
        self, connection: Connection, address: str, on_end: Callable[[AppendStream], object] | None = None
    ) -> None:
        self._tell_end = on_end
        super().__init__(connection, address, lambda stub: stub.Append, lambda _: (), self._joined)  # type: ignore[arg-type, return-value]

    def append(
        self,
        queue: MessageQueue,
        data: bytes,
        answer: Answer,
        transaction: Transaction | None = None,
        due: DueTime | None = None,
        key_queues: int = 0,
        traceparent: str = "",
    ) -> None:
        """Send a batch, to be staged if it belongs to a transaction; `answer` is called once, unless this raises.

        One with a due time is delivered then. A delay is sent as what is left of it, so that clocks need not agree.
        `key_queues` are all queues of a compacted topic, among which that of the keys was chosen; 0 for other topics.
        `traceparent` is the context of a trace that is recorded, if the batch belongs to one.
        """
        if self.failure is not None:
            raise self.failure
        request_id = next(self._ids)
        made = broker_pb2.AppendRequest(request_id=request_id, topic=queue.topic, queue_id=queue.queue_id)
        if key_queues:
            made.key_queues = key_queues
        if traceparent:
            made.traceparent = traceparent
        if transaction is not None:
            made.transaction.name = transaction.name
            made.transaction.number = transaction.number
            made.transaction.is_half = transaction.is_half
        if due is not None:
            made.delay.recallable = due.recallable
            if due.bucket.is_delay:
                made.delay.delay_ms = due.left_ms(time.monotonic())
            else:
                made.delay.due_ms = due.at_ms
        self._receivers[request_id] = answer
        self.add((made.SerializeToString(), field_head(_BATCH, len(data)), data))

    def _joined(self, request: tuple[bytes, ...], others: deque[tuple[bytes, ...] | None]) -> tuple[bytes, ...]:
        size = sum(map(len, request))
        if size > _MOST_JOINED_BYTES:
            return request
        pieces = list(request)
        for _ in range(_MOST_JOINED):
            other = others[0] if others else None
            if other is None or (size := size + sum(map(len, other))) > _MOST_JOINED_BYTES:
                break
            others.popleft()
            pieces += (field_head(_JOINED, sum(map(len, other))), *other)
        return tuple(pieces)

    def _conclude(self, error: MiniMQError | None) -> None:
        if self._tell_end is not None:
            self._tell_end(self)  # first: whoever hears of the end may send by another stream
        super()._conclude(error)

    def _respond(self, response: broker_pb2.AppendResponse) -> None:
        for result in response.results:
            answer = self._receivers.pop(result.request_id, None)
            if answer is None:
                continue
            if result.HasField("failure"):
                answer(None, from_failure(result.failure))
            else:
                answer(result, None)


class AppendStreams(dict[str, AppendStream]):
    """Append streams by address, opened when they are first needed. On the event loop."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._closed = False

    def __missing__(self, address: str) -> AppendStream:
        if self._closed:
            raise Closed("the producer was closed before the message was acknowledged")
        stream = self[address] = AppendStream(self._connection, address, self._ended)
        return stream

    def _ended(self, stream: AppendStream) -> None:
        if self.get(stream.address) is stream:
            del self[stream.address]

    def close(self) -> None:
        """End all streams, and open none any more."""
        self._closed = True
        for stream in self.values():
            stream.close()
        self.clear()
