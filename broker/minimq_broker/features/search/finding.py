"""Searches for messages, on a thread and for a short time per call; and the progress of groups at one message."""

from __future__ import annotations

import asyncio
import struct
import time

import lmdb

from minimq_broker.calls.administration import answering
from minimq_broker.calls.engine import Engine
from minimq_broker.commit.off_loop import uncancellable
from minimq_broker.commit.store import Store
from minimq_broker.features.feature import Handler, Role, Serving
from minimq_broker.features.search import batch_search
from minimq_broker.features.search.batch_search import Search
from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import RunState
from minimq_broker.groups.leases import LeaseKey
from minimq_broker.log.rows import ReadLimits
from minimq_broker.state.state import QueueKey
from minimq_common.errors import CorruptEntry, InvalidArgument, OffsetOutOfRange, SystemBusy
from minimq_common.model import Permission
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.serving.periodic import slices
from minimq_proto.v1 import search_pb2

#: Maximum calls that search or wait for their turn; one searches at a time.
MAX_FINDS = 32
#: Bounds of one call: seconds of CPU, seconds in all, and bytes of returned batches, which the last one may exceed.
_CALL_CPU_S = 0.025
_CALL_S = 0.1
_ANSWER_BYTES = 1 << 20
#: Batches per step. After each the call checks the clock and sleeps, so that other threads run.
_STEP_ROWS = 100
_PAUSE_S = 0.0001
#: Maximum unreadable places that one call reports.
_MAX_UNREADABLE = 64
_ALL = 1 << 62


class SearchServing(Serving):
    service = search_pb2.DESCRIPTOR.services_by_name["Search"]

    def __init__(self, engine: Engine, options: object) -> None:
        self._find = FindService(engine)
        self._trace = TraceService(engine)

    def began(self, role: Role) -> dict[str, Handler]:
        return {"Find": answering(self._find.find), "TraceMessage": answering(self._trace.trace)}


class FindService:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.rejections.counts["finds"] = 0
        self._turn = asyncio.Lock()
        self._asked = 0

    async def find(self, request: search_pb2.FindRequest) -> search_pb2.FindResponse:
        """Search for a bounded time. Raises `TopicNotFound`, `QueueNotFound`, `NoPermission`, `SystemBusy`."""
        search = _search_of(request)
        if self._asked >= MAX_FINDS:
            error = SystemBusy(f"{MAX_FINDS} searches are under way at this broker", limit="finds")
            self._engine.rejections.note(error)
            raise error
        self._asked += 1
        try:
            async with self._turn:  # first come, first served; each call searches once
                state = self._engine.store.state
                queue = state.queue(request.topic, request.queue_id)
                state.check_allowed(state.topic(request.topic), Permission.READ)
                answer = await uncancellable(asyncio.to_thread(self._look, queue, request, search))
        finally:
            self._asked -= 1
        answer.from_slave = not self._engine.store.writer.leads
        answer.is_compacted = state.is_keyed(queue)
        return answer

    def _look(self, queue: QueueKey, request: search_pb2.FindRequest, search: Search) -> search_pb2.FindResponse:
        store = self._engine.store
        with store.reading():
            return _FindCall(store, queue, request, search).run()


class _FindCall:
    """The search of one call: its position, and the answer so far."""

    def __init__(self, store: Store, queue: QueueKey, request: search_pb2.FindRequest, search: Search) -> None:
        self._store = store
        self._queue = queue
        self._search = search
        first, end = store.bounds(queue)
        self._at = max(request.offset, first)
        if request.since_ms:
            self._at = max(self._at, store.offset_at(queue, request.since_ms))
        self._end = min(request.end_offset, end) if request.end_offset else end
        if request.before_ms and not request.end_offset:
            self._end = min(self._end, self._behind(store.offset_at(queue, request.before_ms)))
        self._answer = search_pb2.FindResponse(offset=min(self._at, self._end), max_offset=end)
        self._bytes_left = _ANSWER_BYTES

    def _behind(self, offset: int) -> int:
        row = self._store.log.row_at(self._queue, offset)
        return offset if row is None else row.last_offset + 1

    def run(self) -> search_pb2.FindResponse:
        answer, until, cpu_until = self._answer, time.monotonic() + _CALL_S, time.thread_time() + _CALL_CPU_S
        while self._at < self._end and self._bytes_left > 0 and len(answer.unreadable) < _MAX_UNREADABLE:
            self._step()
            if time.thread_time() >= cpu_until or time.monotonic() >= until:
                break
            time.sleep(_PAUSE_S)
        answer.next_offset, answer.end_offset = min(self._at, self._end), self._end
        return answer

    def _step(self) -> None:
        limits = ReadLimits(_ALL, self._bytes_left, max_rows=_STEP_ROWS, may_hold=self._search)
        try:
            batches, next_offset = self._store.search(self._queue, self._at, limits)
        except CorruptEntry as error:
            self._pass_over(error.next_offset, error.message)
            return
        except (lmdb.Error, struct.error) as error:
            self._pass_over(None, str(error))
            return
        for batch in batches:
            if batch.base_offset >= self._end:
                break
            self._answer.batches.add(
                base_offset=batch.base_offset,
                store_timestamp_ms=batch.stored_ms,
                position=batch.position,
                count=batch.count,
                batch=batch.data,
            )
            self._bytes_left -= len(batch.data)
        if next_offset <= self._at:  # no progress: would loop forever
            self._pass_over(None, "nothing is found there")
        else:
            self._at = next_offset

    def _pass_over(self, next_offset: int | None, reason: str) -> None:
        behind = self._end if next_offset is None or next_offset <= self._at else min(next_offset, self._end)
        self._answer.unreadable.add(offset=self._at, end_offset=behind, reason=reason)
        self._at = behind


def _search_of(request: search_pb2.FindRequest) -> Search:
    kind = request.WhichOneof("wanted")
    if kind == "message":
        search = batch_search.number_search(request.message.producer_id, request.message.sequence)
    elif kind == "key" and request.key:
        search = batch_search.key_search(request.key)
    elif kind == "property_value" and request.property_value:
        search = batch_search.value_search(request.property_value)
    else:
        raise InvalidArgument("a search needs a key, the number of a message, or the value of a property")
    return batch_search.verified(search) if request.verify else search


#: Groups per slice; other tasks run in between.
_AT_ONCE = 50

_PROGRESS = {
    RunState.FREE: search_pb2.MESSAGE_PROGRESS_RETURNED,
    RunState.OUT: search_pb2.MESSAGE_PROGRESS_IN_FLIGHT,
    RunState.DONE: search_pb2.MESSAGE_PROGRESS_SETTLED,
}


class TraceService:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def trace(self, request: search_pb2.TraceMessageRequest) -> search_pb2.TraceMessageResponse:
        """Return the progress at one message of each group that the caller may see. Raises `OffsetOutOfRange`."""
        state = self._engine.store.state
        queue = state.queue(request.topic, request.queue_id)
        end = self._engine.store.queue_end(queue).offset
        if request.offset >= end:
            raise OffsetOutOfRange(
                f"offset {request.offset} of queue {request.topic}/{queue.queue_id} is not stored yet: the next "
                f"message gets {end}"
            )
        answer = search_pb2.TraceMessageResponse(from_slave=not self._engine.store.writer.leads)
        caller = current_caller()
        async for part in slices(sorted(state.index.groups(queue.topic_id)), _AT_ONCE):
            answer.groups.extend(
                self._progress(group, queue, request.offset) for group in part if caller.sees(Resource.GROUP, group)
            )
        return answer

    def _progress(self, group: str, queue: QueueKey, offset: int) -> search_pb2.GroupProgress:
        popped = self._engine.store.state.tables["work_queues"].queues.get((group, *queue))
        if popped is not None:
            return _popped_progress(group, popped, offset)
        committed = self._engine.store.state.offset(group, queue)
        status = self._engine.tables.leases.status(LeaseKey(group, queue), asyncio.get_running_loop().time())
        is_read = committed is not None and offset < committed
        return search_pb2.GroupProgress(
            group=group,
            progress=search_pb2.MESSAGE_PROGRESS_READ if is_read else search_pb2.MESSAGE_PROGRESS_WAITING,
            client_id="" if is_read else status.owner,
            committed_offset=committed or 0,
        )


def _popped_progress(group: str, popped: PopQueue, offset: int) -> search_pb2.GroupProgress:
    progress = search_pb2.GroupProgress(group=group, committed_offset=popped.done)
    if offset < popped.done:
        progress.progress = search_pb2.MESSAGE_PROGRESS_SETTLED
    run = popped.run_at(offset)
    if run is not None:
        progress.progress = _PROGRESS[run.state]
        progress.client_id, progress.delivery_count = run.client, run.delivery_count
        progress.until_ms = run.until_ms if run.state is not RunState.DONE else 0
    return progress
