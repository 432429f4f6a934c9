"""The `Append` call: one stream per client, any number of requests in flight, answers in commit order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from time import monotonic
from typing import Any, ClassVar

import grpc.aio

from minimq_broker.calls.engine import Engine
from minimq_broker.calls.limits import Limits
from minimq_broker.calls.streams import AnswerStream
from minimq_broker.commit.jobs import AppendJob, AppendStatus
from minimq_broker.features.feature import Hold, Serving
from minimq_broker.features.registry import FEATURES
from minimq_common.batch import header as batch
from minimq_common.errors import InvalidArgument, MessageTooLarge, MinimqError, Unavailable, Unsupported
from minimq_common.security.caller import ANY_CALLER, Caller, current_caller
from minimq_common.wire import rpc
from minimq_common.wire.bound_check import check_bounds
from minimq_common.wire.protocol_bounds import MAX_APPENDS
from minimq_proto.v1 import broker_pb2

#: By `AppendStatus`.
SEND_STATUS = broker_pb2.SendStatus.values()

Context = grpc.aio.ServicerContext[broker_pb2.AppendRequest, broker_pb2.AppendResponse]

#: Results that may wait for a client that does not read. Beyond this, the broker stops receiving from it.
MAX_WAITING = 1_000


class AppendService:
    def __init__(self, engine: Engine, servings: Mapping[str, Serving]) -> None:
        self._engine, self._servings = engine, servings
        self._open: set[AppendAnswers] = set()

    def still_syncing(self, seconds: float) -> None:
        """Notify waiting producers that the disk has not finished a sync for that long."""
        for answers in self._open:
            if answers.expected:
                answers.expected += 1
                answers.add(broker_pb2.AppendResult(syncing_ms=round(seconds * 1000)))

    async def serve(self, requests: AsyncIterator[broker_pb2.AppendRequest], context: Context) -> None:
        """Serve requests until the client closes its side and all are answered."""
        answers = AppendAnswers(self._engine, self._servings, context)
        receiver = self._receive(requests, context, answers, current_caller())
        self._open.add(answers)
        try:
            await self._engine.streams.serve(receiver, "append-receiver", answers)
        finally:
            self._open.discard(answers)

    async def _receive(
        self, requests: AsyncIterator[broker_pb2.AppendRequest], context: Any, answers: AppendAnswers, caller: Caller
    ) -> None:
        read = context.read
        request: Any = await anext(requests, grpc.aio.EOF)  # has a deadline; `context.read` below has none
        while request is not grpc.aio.EOF:
            if request.piece:
                incomplete, limits = self._engine.incomplete, self._engine.limits
                request = await incomplete.whole(request, read, answers.acknowledge, limits.max_request_bytes)
            if not 0 < len(request.appends) <= MAX_APPENDS:
                raise InvalidArgument(
                    f"a request has {len(request.appends)} appends, the limit is {MAX_APPENDS}; send at least one"
                )
            for append in request.appends:
                if (job := self._take(append, answers, caller)) is not None:
                    await self._wait_for_room(job, answers)
            request = append = job = None  # frees the memory before the next request comes
            if answers.expected >= MAX_WAITING:
                await answers.fewer(MAX_WAITING)
            request = await read()

    def _take(self, request: broker_pb2.Append, answers: AppendAnswers, caller: Caller) -> AppendJob | None:
        # Submits or rejects the batch and returns None, or returns its job if there is no room now.
        try:
            check_bounds(request)
        except InvalidArgument as error:  # our clients never send one: reject it and end the stream
            answers.reject(request.request_id, error)
            answers.expected += 1
            raise Unavailable(
                "a request of this stream exceeded a limit of its fields: send the later ones on another stream"
            ) from None
        try:
            hold = request.WhichOneof("hold")
            if caller is not ANY_CALLER:
                caller.check(request, None if hold else ("append", request.topic))
            data = request.batch  # each access copies
            job = AppendJob(
                request.topic,
                request.queue_id,
                data,
                checked_header(self._engine.limits, data),
                self._hold_of(hold, request) if hold else None,
                key_queues=request.key_queues,
                user=caller.tag,
                request_id=request.request_id,
                came_at=monotonic(),
                done=answers.answer,
            )
            if not self._engine.writes.offer(job):
                return job
        except MinimqError as error:
            answers.reject(request.request_id, error)
        answers.expected += 1
        return None

    def _hold_of(self, hold: str, request: broker_pb2.Append) -> Hold:
        owner = next((each for each in FEATURES.values() if each.hold_field == hold), None)
        if owner is None:
            raise Unsupported(f"this broker lacks the feature behind {hold!r} of an append: send without it")
        found: Hold = self._servings[owner.name].hold_of(request)
        return found

    async def _wait_for_room(self, job: AppendJob, answers: AppendAnswers) -> None:
        try:
            await self._engine.writes.append(job)
        except MinimqError as error:
            answers.reject(job.request_id, error)
        # Not before: a batch that waits for room when the broker stops is not written, and gets no answer.
        answers.expected += 1


class AppendResults(AnswerStream):
    """The results of one stream; each response has all that wait."""

    response: ClassVar[Any]
    result: ClassVar[Any]

    def __init__(self, engine: Engine, context: Any) -> None:
        super().__init__(context, engine.writes.soon, engine.unsent)
        self._engine = engine

    def take(self) -> bytes:
        results, self._answers = self._answers, []
        self.expected -= len(results)
        return bytes(self.response(results=results).SerializeToString())

    def acknowledge(self, piece_id: int) -> None:
        self.expected += 1
        self.add(self.result(request_id=piece_id))

    def reject(self, request_id: int, error: MinimqError) -> None:
        self._engine.counters.rejected[error.code] += 1
        self._engine.rejections.note(error)
        self.add(self.result(request_id=request_id, failure=rpc.to_failure(error)))


class AppendAnswers(AppendResults):
    response, result = broker_pb2.AppendResponse, broker_pb2.AppendResult

    def __init__(self, engine: Engine, servings: Mapping[str, Serving], context: Any) -> None:
        super().__init__(engine, context)
        self._servings = servings

    def answer(self, job: AppendJob) -> None:
        counters = self._engine.counters
        counters.append_s.add(monotonic() - job.came_at)
        if job.error is not None:
            self.reject(job.request_id, job.error)
            return
        if job.status is AppendStatus.OK:
            counters.messages_in += job.header.count
            counters.bytes_in += len(job.data)
        place = job.place
        result = broker_pb2.AppendResult(
            request_id=job.request_id,
            queue_id=place.queue_id,
            base_offset=place.base_offset,
            store_timestamp_ms=place.stored_ms,
            status=SEND_STATUS[job.status],
        )
        if place.held_until_ms:  # it has no offset yet
            result.base_offset, result.held_until_ms, result.held_id = -1, place.held_until_ms, place.base_offset
            if job.hold is not None:
                self._servings[job.hold.feature].held(job, is_new=job.status is AppendStatus.OK)
        self.add(result)


def checked_header(limits: Limits, data: bytes) -> batch.Header:
    """Verify a received batch and return its header. Raises `CorruptBatch`, `MessageTooLarge`, `InvalidArgument`."""
    if len(data) > limits.max_batch_bytes:
        raise MessageTooLarge(
            f"a batch of {len(data)} bytes is over the limit of this broker, {limits.max_batch_bytes} bytes"
        )
    header = batch.verified_header(data)
    if header.version == batch.SPARSE_VERSION:
        raise InvalidArgument(
            "a batch of a producer cannot be compacted: send one of format 2, or 3 with a message group"
        )
    if header.largest_body > limits.max_body_bytes:
        raise MessageTooLarge(
            f"a message body has {header.largest_body} bytes, the limit of this broker is {limits.max_body_bytes}"
        )
    return header
