"""The `Pull` call: one stream per client carries any number of pulls, each of one queue and with its own bounds."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial

import grpc.aio
import lmdb

from minimq_broker.calls.engine import Engine
from minimq_broker.calls.streams import StreamWriter, raise_failure
from minimq_broker.groups.leases import LeaseKey
from minimq_broker.log.rows import BorrowedViews, ReadLimits, StoredBatch
from minimq_broker.state.state import QueueKey
from minimq_common.errors import CorruptEntry, MinimqError, OffsetOutOfRange, SystemBusy, TopicRecreated
from minimq_common.model import Permission
from minimq_common.security.caller import current_caller
from minimq_common.wire.bound_check import check_bounds
from minimq_common.wire.rpc import LARGE_BYTES, field_head, to_failure
from minimq_common.wire.unsent import SMALL_BYTES
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[broker_pb2.PullRequest, broker_pb2.PullFrame]

#: Target size of a frame. Smaller frames cost several times as much per byte; larger ones gain nothing.
FRAME_BYTES = 1 << 20
#: Maximum pulls of one stream: limits the memory that a client can use.
MAX_PULLS = 4096
MAX_WAIT_S = 60.0
#: Batches that one step may check for wanted tags: about 0.3 ms, during which the event loop is blocked.
STEP_ROWS = 250
#: A pull that only skips batches reports its progress to the client at this interval.
PROGRESS_INTERVAL_S = 1.0


class PullService:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def serve(self, requests: AsyncIterator[broker_pb2.PullRequest], context: Context) -> None:
        """Start and cancel pulls until the client closes its side and the last pull has ended."""
        pulls: dict[int, asyncio.Task[None]] = {}
        writer: StreamWriter[broker_pb2.PullFrame] = StreamWriter(context, self._engine.unsent)
        receiver = self._engine.streams.receive(self._receive(requests, writer, pulls), "pull-receiver")
        try:
            await asyncio.wait((receiver,))
            if pulls and not receiver.cancelled():
                await asyncio.wait(pulls.values())
        finally:
            receiver.cancel()
            for task in pulls.values():
                task.cancel()
        await writer.drained()
        raise_failure(receiver)

    async def _receive(
        self,
        requests: AsyncIterator[broker_pb2.PullRequest],
        writer: StreamWriter[broker_pb2.PullFrame],
        pulls: dict[int, asyncio.Task[None]],
    ) -> None:
        async for request in requests:
            pull_id = request.pull_id
            if pull_id in pulls:  # a request with the id of a running pull cancels or replaces it
                pulls[pull_id].cancel()
            if request.cancel:
                continue
            pull = _Pull(self._engine, request, writer)
            try:
                if len(pulls) >= MAX_PULLS:
                    raise SystemBusy(f"more than {MAX_PULLS} pulls on one stream", limit="pulls")
                check_bounds(request)
            except MinimqError as error:
                await pull.fail(error)  # no task: until the client reads the rejection, it cannot send more pulls
                continue
            task = pulls[pull_id] = asyncio.create_task(pull.run(), name=f"pull-{pull_id}")
            task.add_done_callback(partial(_forget, pulls, pull_id))


def _encoded(frame: broker_pb2.PullFrame, batches: list[StoredBatch], size: int) -> bytes:
    if size < len(batches) * LARGE_BYTES:
        for batch in batches:  # filled in place: adding a finished message would copy it
            fill_batch(frame.batches.add(), batch).batch = bytes(batch.data)
        return frame.SerializeToString()
    return b"".join([frame.SerializeToString(), *batch_parts(broker_pb2.PullFrame.BATCHES_FIELD_NUMBER, batches)])


def _forget(pulls: dict[int, asyncio.Task[None]], pull_id: int, task: asyncio.Task[None]) -> None:
    if pulls.get(pull_id) is task:
        del pulls[pull_id]


class _Pull:
    def __init__(
        self, engine: Engine, request: broker_pb2.PullRequest, writer: StreamWriter[broker_pb2.PullFrame]
    ) -> None:
        self._engine = engine
        self._request = request
        self._writer = writer
        self._offset = request.offset
        self._messages_left = request.max_messages
        self._bytes_left = request.max_bytes
        self._tags: frozenset[int] = frozenset()
        self._wait_s = min(request.wait_ms / 1000, MAX_WAIT_S)
        self._loop = asyncio.get_running_loop()
        self._told_at = self._loop.time()  # time of the latest frame, from which the wait is counted
        #: Since when batches were skipped without a report to the client; None if none were.
        self._silent_since: float | None = None
        #: The first and the end offset of the queue at the latest step.
        self._bounds = (0, 0)
        #: The latest term of the log in which the offset was known to be valid; 0 to skip that check.
        self._term = request.term
        #: The latest frame is the last one.
        self._is_over = False

    async def run(self) -> None:
        """Send frames until a bound is reached, the wait expires or an error ends the pull."""
        try:
            self._tags = frozenset(self._request.tag_hashes)
            while not await self._step():
                pass
        except OffsetOutOfRange as error:  # sends the valid bounds too, which saves the client a request
            await self.fail(error, *self._bounds)
        except CorruptEntry as error:
            where = self._where
            log.error("pull: cannot read %s error=%s", where, error.message)
            told = error.with_message(f"{where} cannot be read: {error.message}")
            await self.fail(told, next_offset=error.next_offset or 0)
        except MinimqError as error:
            await self.fail(error)
        except (lmdb.Error, struct.error) as error:
            where = self._where
            log.error("pull: cannot read %s error=%s", where, error)
            await self.fail(
                CorruptEntry(f"{where} cannot be read ({error}): stop the broker and run minimq-broker check")
            )
        except Exception as error:
            log.exception("pull: failed queue=%s/%d", self._request.topic, self._request.queue_id)
            await self.fail(error)

    @property
    def _where(self) -> str:
        return f"queue {self._request.topic}/{self._request.queue_id} at offset {self._offset}"

    async def fail(self, error: Exception, first: int = 0, end: int = 0, next_offset: int = 0) -> None:
        self._engine.rejections.note(error)
        frame = broker_pb2.PullFrame(
            end=True, failure=to_failure(error), min_offset=first, max_offset=end, next_offset=next_offset
        )
        await self._write(frame)

    async def _step(self) -> bool:
        self._check_access()
        queue = self._checked_queue()  # checked in each step: topic, permission and lease may be gone by now
        cuts = self._engine.store.log.cuts
        first, end = self._bounds = self._engine.store.bounds(queue)
        self._check_term(queue)
        if not first <= self._offset <= end:
            raise OffsetOutOfRange(
                f"offset {self._offset} of queue {self._request.topic}/{queue.queue_id} is not stored: "
                f"valid are {first} to {end} (the next message gets {end})"
            )
        if self._silent_since is not None and self._loop.time() >= self._silent_since + PROGRESS_INTERVAL_S:
            await self._tell(first, end)
        if self._offset == end:
            return await self._wait(queue, first, end)
        # Reads when it is this pull's turn to write: a client that does not read costs one frame, not one per pull.
        made = await self._writer.write(
            lambda: self._next_frame(queue, first, end, cuts),
            partial(self._engine.store.next_size, queue, self._offset),
        )
        if not made:
            await asyncio.sleep(0)  # all was skipped: let other tasks run
            return False
        self._told()
        return self._is_over

    def _check_term(self, queue: QueueKey) -> None:
        store = self._engine.store
        before, self._term = self._term, store.state.term
        if before in (0, self._term):
            return
        end = store.end_since(queue, before)
        if self._offset > end:
            self._bounds = self._bounds[0], end
            raise OffsetOutOfRange(
                f"offset {self._offset} of queue {self._request.topic}/{queue.queue_id} was cut off: "
                f"the queue ended at {end} after term {before}, and continues with other messages"
            )

    async def _wait(self, queue: QueueKey, first: int, end: int) -> bool:
        until = self._told_at + self._wait_s
        now = self._loop.time()
        if now < until:
            at = until if self._silent_since is None else min(until, self._silent_since + PROGRESS_INTERVAL_S)
            await self._engine.arrivals.wait(queue, end, at - now)
            if self._loop.time() < until:
                return False  # check again: a batch came, the lease is lost, or the topic is gone
            self._checked_queue()
            if self._engine.store.queue_end(queue).offset != end:
                return False
        await self._tell(first, end, is_end=True)
        return True

    def _next_frame(self, queue: QueueKey, first: int, end: int, cuts: int) -> bytes | None:
        with BorrowedViews() as borrowed:  # copies batches only once, from the file into the frame
            return self._read_frame(queue, first, end, cuts, borrowed)

    def _read_frame(self, queue: QueueKey, first: int, end: int, cuts: int, borrowed: BorrowedViews) -> bytes | None:
        frame_bytes = SMALL_BYTES if self._engine.unsent.is_tight else FRAME_BYTES
        limits = ReadLimits(
            self._messages_left, min(self._bytes_left, frame_bytes), self._tags, STEP_ROWS, borrowed=borrowed
        )
        batches, next_offset = self._engine.store.search(queue, self._offset, limits)
        if self._engine.store.log.cuts != cuts:  # messages deleted meanwhile must not count as skipped
            return None
        sent = sum(batch.base_offset + batch.count - max(batch.base_offset, self._offset) for batch in batches)
        if not batches and next_offset == self._offset:  # no progress: would loop forever
            raise CorruptEntry(
                f"nothing is found there, and the queue ends at {end}: stop the broker and run minimq-broker check"
            )
        if not batches:  # all were skipped
            if self._silent_since is None and next_offset > self._offset:
                self._silent_since = self._loop.time()
            self._offset = next_offset
            return None
        self._messages_left -= sent
        size = sum(len(batch.data) for batch in batches)
        self._bytes_left -= size
        self._offset = next_offset
        self._engine.counters.messages_out += sent
        self._engine.counters.bytes_out += size
        self._is_over = self._messages_left <= 0 or self._bytes_left <= 0
        frame = broker_pb2.PullFrame(
            pull_id=self._request.pull_id,
            min_offset=first,
            max_offset=end,
            end=self._is_over,
            next_offset=next_offset,
            from_slave=not self._engine.store.writer.leads,
            term=self._term,
            is_compacted=self._engine.store.state.is_keyed(queue),
        )
        return _encoded(frame, batches, size)

    async def _tell(self, first: int, end: int, *, is_end: bool = False) -> None:
        passed = self._silent_since is not None
        await self._write(
            broker_pb2.PullFrame(
                min_offset=first, max_offset=end, end=is_end, next_offset=self._offset if passed else 0
            )
        )
        self._told()

    def _told(self) -> None:
        self._told_at = self._loop.time()
        self._silent_since = None

    def _check_access(self) -> None:
        request = self._request
        current_caller().check(request, ("pull", request.topic, request.lease.group))

    def _checked_queue(self) -> QueueKey:
        request = self._request
        state = self._engine.store.state
        topic = state.topic(request.topic)
        if request.HasField("topic_id") and topic.identity != (request.topic_id.number, request.topic_id.created_ms):
            raise TopicRecreated.of(request.topic)
        queue = state.queue(request.topic, request.queue_id)
        state.check_allowed(topic, Permission.READ)
        if request.HasField("lease"):
            lease = request.lease
            self._engine.writes.check()  # a broker that is no longer the master must not trust its leases
            self._engine.tables.check_lease(LeaseKey(lease.group, queue), lease.client_id, lease.epoch)
        return queue

    async def _write(self, frame: broker_pb2.PullFrame) -> None:
        frame.pull_id = self._request.pull_id
        frame.term = self._term
        frame.from_slave = not self._engine.store.writer.leads
        await self._writer.write(lambda: frame)


def fill_batch(wire: broker_pb2.StoredBatch, batch: StoredBatch) -> broker_pb2.StoredBatch:
    """Set all fields except the bytes of the batch."""
    wire.base_offset, wire.store_timestamp_ms, wire.position = batch.base_offset, batch.stored_ms, batch.position
    wire.count, wire.held_until_ms = batch.count, batch.held_until_ms
    return wire


def batch_parts(number: int, batches: Iterable[StoredBatch]) -> Iterator[bytes]:
    """Yield the encoding of batches as a repeated field with this number, without copying their bytes."""
    for batch in batches:
        around = fill_batch(broker_pb2.StoredBatch(), batch).SerializeToString()
        head = around + field_head(broker_pb2.StoredBatch.BATCH_FIELD_NUMBER, len(batch.data))
        yield field_head(number, len(head) + len(batch.data))
        yield head
        yield batch.data
