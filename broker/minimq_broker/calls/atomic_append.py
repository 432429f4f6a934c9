"""The `AppendAtomic` call: one stream per client, with requests that are each stored completely or not at all."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import grpc.aio

from minimq_broker.calls.append import MAX_WAITING, SEND_STATUS, AppendResults, checked_header
from minimq_broker.calls.engine import Engine
from minimq_broker.commit.jobs import AppendJob, AppendStatus, AtomicJob, OffsetsMoved, Progress
from minimq_broker.groups.offsets import OffsetService
from minimq_common.errors import InvalidArgument, MessageTooLarge, MinimqError
from minimq_common.security.caller import current_caller
from minimq_common.wire.bound_check import check_bounds
from minimq_common.wire.protocol_bounds import MAX_ATOMIC_BYTES
from minimq_proto.v1 import broker_pb2

#: Returns the progress of a feature in an atomic append; see `Progress`.
ProgressOf = Callable[[broker_pb2.AtomicAppend], Progress | None]


class AtomicAppendService:
    def __init__(self, engine: Engine, offsets: OffsetService, parts: Sequence[ProgressOf]) -> None:
        self._engine = engine
        self._offsets = offsets
        self._parts = [self._offsets_moved, *parts]

    async def serve(self, requests: AsyncIterator[Any], context: Any) -> None:
        """Serve requests until the client closes its side and all are answered."""
        answers = AtomicAnswers(self._engine, context)
        await self._engine.streams.serve(self._receive(requests, answers), "appendatomic-receiver", answers)

    async def _receive(self, requests: AsyncIterator[Any], answers: AtomicAnswers) -> None:
        read = partial(anext, requests, grpc.aio.EOF)
        while (request := await read()) is not grpc.aio.EOF:
            if request.piece:
                incomplete, limits = self._engine.incomplete, self._engine.limits
                request = await incomplete.whole(request, read, answers.acknowledge, limits.max_request_bytes)
            await self._take(request, answers)
            del request  # frees the memory before the next request comes
            await answers.fewer(MAX_WAITING)

    async def _take(self, request: broker_pb2.AtomicAppendRequest, answers: AtomicAnswers) -> None:
        check_bounds(request)
        if not request.appends:
            raise InvalidArgument("a request has at least one atomic append")
        for append in request.appends:
            try:
                check_bounds(append)
                current_caller().check(append)
                job = self._atomic_job(append, answers)
                await self._engine.writes.append_atomic(job, partial(self._add_progress, job, append))
            except MinimqError as error:
                answers.reject(append.request_id, error)
            answers.expected += 1

    def _atomic_job(self, request: broker_pb2.AtomicAppend, answers: AtomicAnswers) -> AtomicJob:
        if not request.batches and not request.HasField("progress"):
            raise InvalidArgument("an atomic append needs batches, or the progress of a group")
        if request.ByteSize() > MAX_ATOMIC_BYTES:
            raise MessageTooLarge(
                f"a transaction of {request.ByteSize():,} bytes is over the limit of {MAX_ATOMIC_BYTES:,}: divide it"
            )
        batches = []
        for each in request.batches:
            data = each.batch
            header = checked_header(self._engine.limits, data)
            if not header.producer_id:
                raise InvalidArgument("a batch without a number cannot be part of an atomic append")
            batches.append(AppendJob(each.topic, each.queue_id, data, header, user=current_caller().tag))
        if len({(each.header.producer_id, each.header.sequence) for each in batches}) < len(batches):
            raise InvalidArgument("two batches of an atomic append have the same number")
        request_id, came_at = request.request_id, time.monotonic()

        def done(job: AtomicJob) -> None:
            counters = self._engine.counters
            counters.append_s.add(time.monotonic() - came_at)
            if job.error is not None:
                answers.reject(request_id, job.error)
                return
            job.progress.done()
            result = broker_pb2.AtomicAppendResult(request_id=request_id)
            for each in job.batches:
                if each.status is AppendStatus.OK:
                    counters.messages_in += each.header.count
                    counters.bytes_in += len(each.data)
                result.batches.add(
                    queue_id=each.place.queue_id,
                    base_offset=each.place.base_offset,
                    store_timestamp_ms=each.place.stored_ms,
                    status=SEND_STATUS[each.status],
                )
            answers.add(result)

        return AtomicJob(batches, done=done)

    def _add_progress(self, job: AtomicJob, request: broker_pb2.AtomicAppend) -> None:
        try:
            found = [progress for part in self._parts if (progress := part(request)) is not None]
            if len(found) > 1:  # the commit would reset the queues for which the settles are decided
                raise InvalidArgument("an atomic append records one kind of progress of a group: send two")
            job.progress = found[0] if found else job.progress
        except MinimqError as error:
            if not job.batches:
                raise
            job.rejection = error

    def _offsets_moved(self, request: broker_pb2.AtomicAppend) -> OffsetsMoved | None:
        progress = request.progress
        if not progress.HasField("commit"):
            return None
        if len(progress.begins) != len(progress.commit.offsets):
            raise InvalidArgument("an atomic append needs one of `begins` for each committed offset")
        return OffsetsMoved(self._offsets.checked(progress.commit), tuple(progress.begins))


class AtomicAnswers(AppendResults):
    response, result = broker_pb2.AtomicAppendResponse, broker_pb2.AtomicAppendResult
