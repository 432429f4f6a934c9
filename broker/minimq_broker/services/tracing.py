"""Tracing: the progress of the groups that read a queue, as far as one of its messages is concerned."""

from __future__ import annotations

import asyncio

from minimq_broker.core.leases import LeaseKey
from minimq_broker.core.pop_queue import PopQueue
from minimq_broker.core.pop_runs import RunState
from minimq_broker.core.state import QueueKey
from minimq_broker.services.engine import Engine
from minimq_common.errors import OffsetOutOfRange
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.slices import slices
from minimq_proto.v1 import find_pb2

#: Groups that are looked at before it is the turn of others.
_AT_ONCE = 50

_PROGRESS = {
    RunState.FREE: find_pb2.MESSAGE_PROGRESS_RETURNED,
    RunState.OUT: find_pb2.MESSAGE_PROGRESS_IN_FLIGHT,
    RunState.DONE: find_pb2.MESSAGE_PROGRESS_SETTLED,
}


class TraceService:
    """The `TraceMessage` call of the broker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def trace(self, request: find_pb2.TraceMessageRequest) -> find_pb2.TraceMessageResponse:
        """Return the progress of each group that the caller may see."""
        state = self._engine.state
        queue = state.queue(request.topic, request.queue_id)
        end = self._engine.store.queue_end(queue).offset
        if request.offset >= end:
            raise OffsetOutOfRange(
                f"offset {request.offset} of queue {request.topic}/{queue.queue_id} is not stored yet: the next "
                f"message gets {end}"
            )
        answer = find_pb2.TraceMessageResponse(from_slave=self._engine.handle.is_slave)
        caller = current_caller()
        async for part in slices(sorted(state.index.groups(queue.topic_id)), _AT_ONCE):
            answer.groups.extend(
                self._progress(group, queue, request.offset) for group in part if caller.sees(Resource.GROUP, group)
            )
        return answer

    def _progress(self, group: str, queue: QueueKey, offset: int) -> find_pb2.GroupProgress:
        popped = self._engine.state.popped.get((group, *queue))
        if popped is not None:
            return _popped_progress(group, popped, offset)
        committed = self._engine.offsets.committed(group, queue)
        status = self._engine.leases.status(LeaseKey(group, queue), asyncio.get_running_loop().time())
        is_read = committed is not None and offset < committed
        return find_pb2.GroupProgress(
            group=group,
            progress=find_pb2.MESSAGE_PROGRESS_READ if is_read else find_pb2.MESSAGE_PROGRESS_WAITING,
            client_id="" if is_read else status.owner,
            committed_offset=committed or 0,
        )


def _popped_progress(group: str, popped: PopQueue, offset: int) -> find_pb2.GroupProgress:
    progress = find_pb2.GroupProgress(group=group, committed_offset=popped.done)
    if offset < popped.done:
        progress.progress = find_pb2.MESSAGE_PROGRESS_SETTLED
    run = next((each for each in popped.runs if each.first <= offset < each.end), None)
    if run is not None:
        progress.progress = _PROGRESS[run.state]
        progress.client_id, progress.tries = run.client, run.tries
        progress.until_ms = run.until_ms if run.state is not RunState.DONE else 0
    return progress
