"""Streams that send batches to brokers and match results to requests by id. On the event loop of a connection."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import grpc.aio

from minimq.connection.connection import Connection
from minimq.connection.loop_thread import answer_of
from minimq.connection.stream import CorrelatedStream
from minimq.sending.hold import Hold
from minimq.sending.pacing import Pacing
from minimq_common.errors import Closed, MinimqError
from minimq_common.model import MessageQueue
from minimq_common.wire.rpc import LARGE_BYTES, field_head, from_failure
from minimq_proto.v1 import broker_pb2

Response = TypeVar("Response")
Result = TypeVar("Result")
#: The parts of an encoded request.
Parts = tuple["bytes | memoryview", ...]
#: Called with the result, or with the error.
Answer = Callable[[Result | None, MinimqError | None], object]

_APPENDS = broker_pb2.AppendRequest.APPENDS_FIELD_NUMBER
_BATCH = broker_pb2.Append.BATCH_FIELD_NUMBER
_ATOMIC_APPENDS = broker_pb2.AtomicAppendRequest.APPENDS_FIELD_NUMBER
_ATOMIC_BATCHES = broker_pb2.AtomicAppend.BATCHES_FIELD_NUMBER
_ATOMIC_BATCH = broker_pb2.AtomicBatch.BATCH_FIELD_NUMBER
#: Most requests and bytes that are merged into one write, as a write of gRPC costs as much as ten small requests.
_MAX = 64
_MAX_BYTES = 32 << 10
_MAX_ATOMIC_BYTES = 256 << 10

_CLOSED = "the producer was closed before the broker had acknowledged it: it may be stored"


class _Rest(tuple["bytes | memoryview", ...]):
    """The rest of a request that is sent in pieces."""


class BatchStream(CorrelatedStream[Parts, Response, Result], Generic[Response, Result]):
    """Sends encoded requests, each a tuple of parts, to one broker.

    Merges small ones that wait for the same write, and sends large ones in pieces if the connection is slow.
    """

    method: ClassVar[str]
    most_bytes: ClassVar[int]
    kind: ClassVar[type[broker_pb2.AppendRequest] | type[broker_pb2.AtomicAppendRequest]]

    def __init__(self, connection: Connection, address: str, on_end: Callable[[Any], object] = lambda _: None) -> None:
        self._on_stream_end = on_end
        self._pacing = Pacing()
        #: Why there is no answer, as the last `Append` response reported: the end of a sentence, or nothing.
        self.delay = ""
        super().__init__(connection, address, lambda stub: getattr(stub, self.method), lambda _: ())

    @property
    def moved_at(self) -> float:
        """When the broker acknowledged a piece of a large request last, on the monotonic clock."""
        return self._pacing.moved_at

    async def answer(self, ask: Callable[[Answer[Result]], object], limit_s: float) -> Result:
        """Send a request, and return its answer. Raises `TimeoutError` after `limit_s` seconds without progress."""
        answer: asyncio.Future[Result] = answer_of(ask)
        until = time.monotonic() + limit_s
        try:
            while not answer.done():
                left_s = max(until, self.moved_at + limit_s) - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                await asyncio.wait((answer,), timeout=left_s)
            return answer.result()
        finally:
            answer.cancel()

    def _next_write(self, call: grpc.aio.StreamStreamCall[Parts, Response]) -> Coroutine[Any, Any, None]:
        request = self._requests.popleft()
        if request is None:
            return call.done_writing()
        if isinstance(request, _Rest) or sum(map(len, request)) > self._pacing.piece_bytes:
            return call.write(self._piece(request))
        return call.write(self._joined(request, self._requests) if self._requests else request)

    def _piece(self, request: Parts) -> Parts:
        whole = memoryview(request[0] if isinstance(request, _Rest) else b"".join(request))
        piece, rest = whole[: self._pacing.piece_bytes], whole[self._pacing.piece_bytes :]
        if rest:
            self._requests.appendleft(_Rest((rest,)))
        piece_id, size = next(self._ids), len(piece)
        self._receivers[piece_id] = partial(self._acknowledged, size, time.monotonic())
        self._pacing.sent(size)
        self._is_held = self._pacing.is_full
        head = self.kind(piece_id=piece_id, rest=len(rest)).SerializeToString()
        return head, field_head(self.kind.PIECE_FIELD_NUMBER, size), piece

    def _acknowledged(self, size: int, sent_at: float, _: object, error: MinimqError | None) -> None:
        if error is None:
            now = time.monotonic()
            self._pacing.acknowledged(size, now - sent_at, now)
            self._is_held = self._pacing.is_full
            self._write()

    def _joined(self, request: Parts, others: deque[Parts | None]) -> Parts:
        pieces, size = [*request], sum(map(len, request))
        for _ in range(_MAX - 1):
            other = others[0] if others else None
            if other is None or (size := size + sum(map(len, other))) > self.most_bytes:
                break
            others.popleft()
            pieces += other
        return tuple(pieces)

    def _respond(self, response: Any) -> None:
        self.delay = ""
        for result in response.results:
            answer = self._receivers.pop(result.request_id, None)
            if answer is None:
                self._respond_unasked(result)
                continue
            if result.HasField("failure"):
                answer(None, from_failure(result.failure))
            else:
                answer(result, None)

    def _respond_unasked(self, result: Any) -> None:
        pass

    def _conclude(self, error: MinimqError | None) -> None:
        self._on_stream_end(self)  # first: a receiver may send again, and must get a new stream
        super()._conclude(error)


class AppendStream(BatchStream[broker_pb2.AppendResponse, broker_pb2.AppendResult]):
    method, most_bytes, kind = "Append", _MAX_BYTES, broker_pb2.AppendRequest

    def append(
        self,
        queue: MessageQueue,
        data: bytes,
        answer: Answer[broker_pb2.AppendResult],
        hold: Hold | None = None,
        key_queues: int = 0,
    ) -> None:
        """Send a batch; `answer` is called once, unless this raises.

        `key_queues` is the number of queues of a compacted topic from which the queue was chosen; 0 for other topics.
        """
        if self.failure is not None:
            raise self.failure
        request_id = next(self._ids)
        made = broker_pb2.Append(request_id=request_id, topic=queue.topic, queue_id=queue.queue_id)
        if key_queues:
            made.key_queues = key_queues
        if hold is not None:
            hold.write(made, time.monotonic())
        self._receivers[request_id] = answer
        parts: Parts
        if len(data) < LARGE_BYTES:
            made.batch = data
            parts = (made.SerializeToString(),)
        else:
            parts = made.SerializeToString(), field_head(_BATCH, len(data)), data
        self.add((field_head(_APPENDS, sum(map(len, parts))), *parts))

    def _respond_unasked(self, result: broker_pb2.AppendResult) -> None:
        seconds = result.syncing_ms / 1000
        self.delay = f": its disk has not finished a sync for {seconds:.1f} s" if seconds else ""


class AtomicStream(BatchStream[broker_pb2.AtomicAppendResponse, broker_pb2.AtomicAppendResult]):
    """Sends atomic appends, and the ends of transactions with half messages, to one broker."""

    method, most_bytes, kind = "AppendAtomic", _MAX_ATOMIC_BYTES, broker_pb2.AtomicAppendRequest

    def append(
        self,
        made: broker_pb2.AtomicAppend,
        batches: Sequence[tuple[MessageQueue, bytes]],
        answer: Answer[broker_pb2.AtomicAppendResult],
    ) -> None:
        """Send batches that are stored all or none; `answer` is called once, unless this raises."""
        if self.failure is not None:
            raise self.failure
        made.request_id = next(self._ids)
        pieces = [made.SerializeToString()]
        for queue, data in batches:
            about = broker_pb2.AtomicBatch(topic=queue.topic, queue_id=queue.queue_id).SerializeToString()
            head = field_head(_ATOMIC_BATCH, len(data))
            pieces += [field_head(_ATOMIC_BATCHES, len(about) + len(head) + len(data)), about, head, data]
        self._receivers[made.request_id] = answer
        self.add((field_head(_ATOMIC_APPENDS, sum(map(len, pieces))), *pieces))


S = TypeVar("S", bound=BatchStream[Any, Any])


class StreamsByAddress(dict[str, S], Generic[S]):
    """Streams by broker address; opens a missing one, and removes those that end."""

    def __init__(self, connection: Connection, kind: type[S]) -> None:
        super().__init__()
        self._connection = connection
        self._kind = kind
        self._closed = False

    def __missing__(self, address: str) -> S:
        if self._closed:
            raise Closed(_CLOSED)
        stream = self[address] = self._kind(self._connection, address, self._ended)
        return stream

    def _ended(self, stream: S) -> None:
        if self.get(stream.address) is stream:
            del self[stream.address]

    def close(self) -> None:
        """Close all streams; further ones are rejected with `Closed`."""
        self._closed = True
        for stream in [*self.values()]:
            stream.fail(Closed(_CLOSED))
