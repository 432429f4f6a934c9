"""Sending: one stream per client, any number of requests in flight, answers in the order of the commits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from minimq_broker.core.delays import Delay
from minimq_broker.services.engine import Engine
from minimq_broker.services.limits import Limits
from minimq_broker.services.streams import raise_failure
from minimq_broker.services.transactions import transaction_of
from minimq_broker.store.jobs import AppendJob, AppendStatus, JobTimes
from minimq_common import batch, rpc
from minimq_common.bound_check import check_bounds
from minimq_common.errors import InvalidArgument, MessageTooLarge, MiniMQError
from minimq_common.protocol_bounds import MAX_JOINED_APPENDS
from minimq_common.security.caller import current_caller
from minimq_common.stream_writer import StreamWriter
from minimq_proto.v1 import broker_pb2, delay_pb2

#: How the status of a batch is told.
SEND_STATUS = {
    AppendStatus.OK: broker_pb2.SEND_STATUS_OK,
    AppendStatus.NOT_SYNCED: broker_pb2.SEND_STATUS_NOT_SYNCED,
    AppendStatus.ALREADY_STORED: broker_pb2.SEND_STATUS_ALREADY_STORED,
}

Context = grpc.aio.ServicerContext[broker_pb2.AppendRequest, broker_pb2.AppendResponse]

#: Results that may wait for a client that does not read; with more, nothing is received from it.
MAX_WAITING = 1_000


class AppendService:
    """The `Append` call of the broker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def serve(self, requests: AsyncIterator[broker_pb2.AppendRequest], context: Context) -> Coroutine[Any, Any, None]:
        """Take requests and send answers until the client closes its side and all is answered."""
        return self._serve(
            "append", requests, context, AppendAnswers(partial(broker_pb2.AppendResponse, takes_joined=True))
        )

    async def _serve(
        self,
        call: str,
        requests: AsyncIterator[Any],
        context: Any,  # noqa: ANN401
        answers: AppendAnswers,
    ) -> None:
        writer: StreamWriter[Any] = StreamWriter(context, self._engine.unsent)
        receiver = self._engine.streams.receive(self._receive(requests, answers), f"{call}-receiver")
        try:
            while await answers.some():
                await writer.write_alone(answers.take)
        finally:
            receiver.cancel()
        raise_failure(receiver)

    async def _receive(self, requests: AsyncIterator[Any], answers: AppendAnswers) -> None:
        try:
            async for request in requests:
                if (rate := current_caller().received) is not None:
                    await rate.turn()
                    rate.moved(request.ByteSize())
                await self._take(request, answers)
                del request  # or it would be kept until the next one comes
                # Only now: one that waits for room when the broker stops is not written, and gets no answer.
                answers.expect()
                if answers.are_too_many:
                    await answers.fewer()
        finally:
            answers.end()

    async def _take(self, request: Any, answers: AppendAnswers) -> None:  # noqa: ANN401 - of either call
        joined = request.joined
        if len(joined) > MAX_JOINED_APPENDS:  # nobody knows which they are: the stream ends
            raise InvalidArgument(f"{len(joined)} requests came with another, the limit is {MAX_JOINED_APPENDS}")
        await self._take_one(request, answers)
        for data in joined:
            answers.expect()
            await self._take_one(_opened(data), answers)

    async def _take_one(self, request: Any, answers: AppendAnswers) -> None:  # noqa: ANN401 - of either call
        data = request.batch  # each look at it is a copy
        try:
            check_bounds(request)
            current_caller().check(request, None if request.HasField("transaction") else ("append", request.topic))
            self._check_key_queues(request)
            await self._engine.writes.append(self._job(request, data, answers))
        except MiniMQError as error:
            self._engine.counters.refused[error.code] += 1
            self._engine.refusals.note(error)
            answers.add(broker_pb2.AppendResult(request_id=request.request_id, failure=rpc.to_failure(error)))

    def _check_key_queues(self, request: broker_pb2.AppendRequest) -> None:
        topic = self._engine.state.topics.get(request.topic)
        if topic is None or topic.key_queues == request.key_queues:
            return
        if not topic.key_queues:
            raise InvalidArgument(f"topic {topic.name!r} is not compacted any more: it was deleted and created again")
        raise InvalidArgument(
            f"topic {topic.name!r} is compacted, and each key has its own among all of its {topic.key_queues} queues: "
            "send with a client that knows compacted topics, by Producer or minimq produce"
        )

    def _job(self, request: broker_pb2.AppendRequest, data: bytes, answers: AppendAnswers) -> AppendJob:
        header = checked_header(self._engine.limits, data)
        request_id = request.request_id
        counters, refusals = self._engine.counters, self._engine.refusals
        came_at = time.monotonic()
        spans = self._engine.spans
        parent = spans.parent(request.traceparent) if spans is not None else None

        def done(job: AppendJob) -> None:
            ended_at = time.monotonic()
            counters.append_s.add(ended_at - came_at)
            if spans is not None and parent is not None:
                spans.make(parent, job, came_at, ended_at)
            if job.error:
                counters.refused[job.error.code] += 1
                refusals.note(job.error)
                result = broker_pb2.AppendResult(request_id=request_id, failure=rpc.to_failure(job.error))
            else:
                result = broker_pb2.AppendResult(
                    request_id=request_id,
                    queue_id=job.stored_queue_id,
                    base_offset=job.base_offset,
                    store_timestamp_ms=job.stored_ms,
                    status=SEND_STATUS[job.status],
                )
                if job.due is not None:
                    result.due_ms, result.recall_id = job.due
            answers.add(result)

        transaction = transaction_of(request.transaction) if request.HasField("transaction") else None
        delay = _delay_of(request.delay) if request.HasField("delay") else None
        if delay is not None and transaction is not None:
            raise InvalidArgument("a batch of a transaction cannot be delayed: leave out one of both")
        times = None if parent is None else JobTimes()
        return AppendJob(request.topic, request.queue_id, data, header, transaction, delay, times, done=done)


def _opened(data: bytes) -> broker_pb2.AppendRequest:
    try:
        return broker_pb2.AppendRequest.FromString(data)
    except DecodeError as error:
        reason = f"{len(data)} bytes that came with a request are none: {error}"
    raise InvalidArgument(reason)


def _delay_of(wire: delay_pb2.Delay) -> Delay:
    due_ms = wire.due_ms if wire.HasField("due_ms") else None
    return Delay(wire.delay_ms, due_ms, wire.recallable)


def checked_header(limits: Limits, data: bytes) -> batch.Header:
    """Return the header of a batch as it came. Raises `CorruptBatch`, `MessageTooLarge`, `InvalidArgument`."""
    if len(data) > limits.max_batch_bytes:
        raise MessageTooLarge(
            f"a batch of {len(data)} bytes is over the limit of this broker, {limits.max_batch_bytes} bytes"
        )
    batch.verify(data)
    header = batch.read_header(data)
    if header.version == batch.COMPACTED_VERSION:
        raise InvalidArgument("a batch of a producer cannot be compacted: send one of format 2, or 3 with a lane")
    if header.largest_body > limits.max_body_bytes:
        raise MessageTooLarge(
            f"a message body has {header.largest_body} bytes, the limit of this broker is {limits.max_body_bytes}"
        )
    batch.check_header(header, data)
    return header


class AppendAnswers:
    """Results that wait to be written to one stream."""

    def __init__(self, response: Callable[..., Any]) -> None:
        self._response = response
        self._results: list[Any] = []
        self._expected = 0
        self._ended = False
        #: Of the writer of the stream while it waits; a future costs less than an event.
        self._waiter: asyncio.Future[None] | None = None
        self._taken = asyncio.Event()

    @property
    def are_too_many(self) -> bool:
        """True if too many answers wait for another request to be accepted."""
        return len(self._results) >= MAX_WAITING

    async def fewer(self) -> None:
        """Return when they are not too many."""
        while self.are_too_many:
            self._taken.clear()
            await self._taken.wait()

    def expect(self) -> None:
        """One more result will come, or has just been added."""
        self._expected += 1

    def add(self, result: Any) -> None:  # noqa: ANN401 - as the answer takes them
        """Add one."""
        self._results.append(result)
        self._wake()

    def end(self) -> None:
        """No further request will come."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def some(self) -> bool:
        """Wait until there are some; False once all is answered and no request will come."""
        while not self._results:
            if self._ended and not self._expected:
                return False
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return True

    def take(self) -> Any:  # noqa: ANN401
        """Return all that there are."""
        results, self._results = self._results, []
        self._expected -= len(results)
        self._taken.set()
        return self._response(results=results)
