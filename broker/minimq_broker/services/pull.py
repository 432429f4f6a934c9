"""Reading: one stream per client carries any number of pulls, each for one queue and with its own bounds."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator
from functools import partial

import grpc.aio
import lmdb

from minimq_broker.core.leases import LeaseKey
from minimq_broker.core.state import QueueKey
from minimq_broker.services.engine import Engine
from minimq_common.errors import (
    CorruptEntry,
    InvalidArgument,
    MiniMQError,
    OffsetOutOfRange,
    SystemBusy,
)
from minimq_common.model import Permission
from minimq_common.rpc import to_failure
from minimq_common.stream_writer import StreamWriter
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[broker_pb2.PullRequest, broker_pb2.PullFrame]

#: A frame is about this large. Smaller ones cost a multiple per byte, larger ones gain nothing.
FRAME_BYTES = 1 << 20
#: Pulls that one stream may have under way: bounds what a client can make the broker hold.
MAX_PULLS = 4096
MAX_WAIT_S = 60.0


class PullService:
    """The `Pull` call of the broker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def serve(self, requests: AsyncIterator[broker_pb2.PullRequest], context: Context) -> None:
        """Start and cancel pulls as the client asks, until it closes its side and the last pull has ended."""
        pulls: dict[int, asyncio.Task[None]] = {}
        writer: StreamWriter[broker_pb2.PullFrame] = StreamWriter(context)
        receiver = self._engine.receive(self._receive(requests, writer, pulls), "pull-receiver")
        try:
            await asyncio.wait((receiver,))
            if pulls and not receiver.cancelled():
                await asyncio.wait(pulls.values())
        finally:
            receiver.cancel()
            for task in pulls.values():
                task.cancel()
        await writer.drained()

    async def _receive(
        self,
        requests: AsyncIterator[broker_pb2.PullRequest],
        writer: StreamWriter[broker_pb2.PullFrame],
        pulls: dict[int, asyncio.Task[None]],
    ) -> None:
        async for request in requests:
            pull_id = request.pull_id
            if pull_id in pulls:  # an id that is used again ends the pull that had it
                pulls[pull_id].cancel()
            if request.cancel:
                continue
            pull = _Pull(self._engine, request, writer, refused=len(pulls) >= MAX_PULLS)
            task = pulls[pull_id] = asyncio.create_task(pull.run(), name=f"pull-{pull_id}")
            task.add_done_callback(partial(_forget, pulls, pull_id))


def _forget(pulls: dict[int, asyncio.Task[None]], pull_id: int, task: asyncio.Task[None]) -> None:
    if pulls.get(pull_id) is task:
        del pulls[pull_id]


class _Pull:
    """One pull of one queue."""

    def __init__(
        self,
        engine: Engine,
        request: broker_pb2.PullRequest,
        writer: StreamWriter[broker_pb2.PullFrame],
        *,
        refused: bool,
    ) -> None:
        self._engine = engine
        self._request = request
        self._writer = writer
        self._refused = refused
        self._offset = request.offset
        self._messages_left = request.max_messages
        self._bytes_left = request.max_bytes

    async def run(self) -> None:
        """Send frames until a bound is reached, the time is over or an error ends the pull."""
        try:
            self._check()
            while not await self._step():
                pass
        except MiniMQError as error:
            await self._fail(error)
        except (lmdb.Error, struct.error) as error:
            where = f"queue {self._request.topic}/{self._request.queue_id} at offset {self._offset}"
            log.error("pull: cannot read %s error=%s", where, error)
            await self._fail(
                CorruptEntry(f"{where} cannot be read ({error}): stop the broker and run minimq-broker check")
            )
        except Exception as error:
            log.exception("pull: failed queue=%s/%d", self._request.topic, self._request.queue_id)
            await self._fail(error)

    async def _fail(self, error: Exception) -> None:
        await self._write(broker_pb2.PullFrame(end=True, failure=to_failure(error)))

    def _check(self) -> None:
        request = self._request
        if self._refused:
            raise SystemBusy(f"more than {MAX_PULLS} pulls on one stream", retry_after_s=0.1)
        if request.max_messages <= 0 or request.max_bytes <= 0:
            raise InvalidArgument("max_messages and max_bytes of a pull must be at least 1")

    async def _step(self) -> bool:
        """Send one frame, or wait for one. Returns True when the pull is over."""
        queue = self._queue()  # looked up each time: topic, permission and lease may have gone meanwhile
        first, end = self._engine.store.bounds(queue)
        if not first <= self._offset <= end:
            raise OffsetOutOfRange(
                f"offset {self._offset} of queue {self._request.topic}/{queue.queue_id} is not stored: "
                f"valid are {first} to {end} (the next message gets {end})"
            )
        if self._offset == end:
            wait_s = min(self._request.wait_ms / 1000, MAX_WAIT_S)
            if wait_s > 0:
                await self._engine.arrival(queue, end, wait_s)
            if wait_s <= 0 or (self._engine.state.end(queue).offset == end and self._still_there(queue)):
                await self._write(broker_pb2.PullFrame(min_offset=first, max_offset=end, end=True))
                return True
            return False
        return await self._send(queue, first, end)

    async def _send(self, queue: QueueKey, first: int, end: int) -> bool:
        # Read only when it is this pull's turn to write: a client that does not read costs one frame, not one per pull.
        frame = await self._writer.write(lambda: self._next_frame(queue, first, end))
        return frame is not None and frame.end

    def _next_frame(self, queue: QueueKey, first: int, end: int) -> broker_pb2.PullFrame | None:
        batches = self._engine.store.read(queue, self._offset, self._messages_left, min(self._bytes_left, FRAME_BYTES))
        if not batches:
            return None  # retention was faster: the next step says which offsets are valid
        last = batches[-1]
        sent = last.base_offset + last.count - self._offset
        self._messages_left -= sent
        self._bytes_left -= sum(len(batch.data) for batch in batches)
        self._offset += sent
        self._engine.counters.messages_out += sent
        return broker_pb2.PullFrame(
            pull_id=self._request.pull_id,
            batches=[
                broker_pb2.StoredBatch(
                    base_offset=batch.base_offset,
                    store_timestamp_ms=batch.stored_ms,
                    position=batch.position,
                    batch=batch.data,
                    count=batch.count,
                )
                for batch in batches
            ],
            min_offset=first,
            max_offset=end,
            end=self._messages_left <= 0 or self._bytes_left <= 0,
        )

    def _queue(self) -> QueueKey:
        request = self._request
        state = self._engine.state
        queue = state.queue(request.topic, request.queue_id)
        state.check_allowed(state.topic(request.topic), Permission.READ)
        if request.HasField("lease"):
            lease = request.lease
            self._engine.leases.check(LeaseKey(lease.group, queue), lease.client_id, lease.epoch)
        return queue

    def _still_there(self, queue: QueueKey) -> bool:
        topic = self._engine.state.topics.get(self._request.topic)
        return topic is not None and topic.topic_id == queue.topic_id

    async def _write(self, frame: broker_pb2.PullFrame) -> None:
        frame.pull_id = self._request.pull_id
        await self._writer.write(lambda: frame)
