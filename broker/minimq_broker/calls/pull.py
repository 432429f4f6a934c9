"""The `Pull` call: one stream per client carries any number of pulls, each of one queue and with its own bounds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import grpc.aio
import lmdb

from minimq_broker.calls.engine import Engine
from minimq_broker.calls.streams import AnswerStream
from minimq_broker.groups.leases import LeaseKey
from minimq_broker.log.rows import BorrowedViews, ReadLimits, StoredBatch
from minimq_broker.state.facts import Topic
from minimq_broker.state.state import QueueKey, State
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
        frames = PullFrames(self._engine, context)
        await self._engine.streams.serve(self._receive(requests, frames), "pull-receiver", frames)

    async def _receive(self, requests: AsyncIterator[broker_pb2.PullRequest], frames: PullFrames) -> None:
        try:
            async for request in requests:
                frames.cancel(request.pull_id)  # a request with the id of a running pull cancels or replaces it
                if not request.cancel:
                    await frames.begin(request)
                await frames.fewer(2 * MAX_PULLS)  # replaced pulls may wait for their turn
        except asyncio.CancelledError:  # the role of the broker has changed
            frames.close()
            raise


class PullFrames(AnswerStream):
    """The pulls of one stream. Those that have something to send take turns, one frame each."""

    _answers: list[_Pull]

    def __init__(self, engine: Engine, context: Any) -> None:
        super().__init__(context, engine.writes.soon, engine.unsent)
        self._engine = engine
        self._pulls: dict[int, _Pull] = {}

    async def begin(self, request: broker_pb2.PullRequest) -> None:
        """Start a pull. If it is rejected, wait until the client reads that: until then, it cannot send more pulls."""
        pull = _Pull(self._engine, request, self.add)
        try:
            if len(self._pulls) >= MAX_PULLS:
                raise SystemBusy(f"more than {MAX_PULLS} pulls on one stream", limit="pulls")
            check_bounds(request)
        except MinimqError as error:
            pull.failure = error
        else:
            self._pulls[request.pull_id] = pull
        self.expected += 1
        self.add(pull)
        while pull.failure is not None and not pull.is_over and not self.is_closed:
            await self._change()

    def cancel(self, pull_id: int) -> None:
        """End a pull, if it is running, without a further frame."""
        if (pull := self._pulls.get(pull_id)) is not None:
            self._end_pull(pull)

    def close(self) -> None:
        """Write nothing more."""
        super().close()
        for pull in [*self._pulls.values()]:
            self._end_pull(pull)

    def next_size(self) -> int:
        return self._answers[0].next_size()

    def take(self) -> bytes | None:
        """Return the next frame of the pull whose turn it is."""
        pull = self._answers.pop(0)
        if pull.is_over:  # cancelled
            return None
        frame = pull.step()
        if pull.is_over:
            self._end_pull(pull)
        elif not pull.is_waiting:
            self._answers.append(pull)
        return frame

    def _end_pull(self, pull: _Pull) -> None:
        pull.end()
        if self._pulls.get(pull.pull_id) is pull:
            del self._pulls[pull.pull_id]
        self.expected -= 1
        self._wake()


def _encoded(frame: broker_pb2.PullFrame, batches: list[StoredBatch], size: int) -> bytes:
    if size < len(batches) * LARGE_BYTES:
        for batch in batches:  # filled in place: adding a finished message would copy it
            fill_batch(frame.batches.add(), batch).batch = bytes(batch.data)
        return frame.SerializeToString()
    return b"".join([frame.SerializeToString(), *batch_parts(broker_pb2.PullFrame.BATCHES_FIELD_NUMBER, batches)])


class _Pull:
    def __init__(self, engine: Engine, request: broker_pb2.PullRequest, ready: Callable[[_Pull], None]) -> None:
        self._engine = engine
        self._request = request
        self.pull_id = request.pull_id
        self._caller = current_caller()
        self._ready = ready
        #: Ends the pull in its next step.
        self.failure: MinimqError | None = None
        #: The queue whose end it waits at, and the timer of that wait.
        self._waits_at: QueueKey | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._offset = request.offset
        self._tags = frozenset(request.tag_hashes)
        self._messages_left = request.max_messages
        self._bytes_left = request.max_bytes
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
        self.is_over = False

    @property
    def is_waiting(self) -> bool:
        """True until `ready` is called."""
        return self._timer is not None

    def end(self) -> None:
        """Send nothing more."""
        self.is_over = True
        self._stop_waiting()

    def next_size(self) -> int:
        """Estimate the bytes of the next frame."""
        with contextlib.suppress(MinimqError):
            store = self._engine.store
            return store.next_size(store.state.queue(self._request.topic, self._request.queue_id), self._offset)
        return 0

    def step(self) -> bytes | None:
        """Return the next frame; None if there is nothing to send now."""
        try:
            if self.failure is not None:
                raise self.failure
            return self._step()
        except OffsetOutOfRange as error:  # sends the valid bounds too, which saves the client a request
            return self._fail(error, *self._bounds)
        except CorruptEntry as error:
            where = self._where
            log.error("pull: cannot read %s error=%s", where, error.message)
            told = error.with_message(f"{where} cannot be read: {error.message}")
            return self._fail(told, next_offset=error.next_offset or 0)
        except MinimqError as error:
            return self._fail(error)
        except (lmdb.Error, struct.error) as error:
            where = self._where
            log.error("pull: cannot read %s error=%s", where, error)
            return self._fail(
                CorruptEntry(f"{where} cannot be read ({error}): stop the broker and run minimq-broker check")
            )
        except Exception as error:
            log.exception("pull: failed queue=%s/%d", self._request.topic, self._request.queue_id)
            return self._fail(error)

    @property
    def _where(self) -> str:
        return f"queue {self._request.topic}/{self._request.queue_id} at offset {self._offset}"

    def _fail(self, error: Exception, first: int = 0, end: int = 0, next_offset: int = 0) -> bytes:
        self._engine.rejections.note(error)
        self.is_over = True
        return self._frame(failure=to_failure(error), min_offset=first, max_offset=end, next_offset=next_offset)

    def _step(self) -> bytes | None:
        store = self._engine.store
        state = store.state
        queue, topic = self._checked_queue(state)  # in each step: topic, permission and lease may be gone by now
        cuts = store.log.cuts
        first, end = self._bounds = store.bounds(queue)
        if self._term != state.term:
            self._check_term(queue, state.term)
        if not first <= self._offset <= end:
            raise OffsetOutOfRange(
                f"offset {self._offset} of queue {self._request.topic}/{queue.queue_id} is not stored: "
                f"valid are {first} to {end} (the next message gets {end})"
            )
        if self._silent_since is not None and self._loop.time() >= self._silent_since + PROGRESS_INTERVAL_S:
            return self._progress(first, end)
        if self._offset == end:
            return self._wait(queue, first, end)
        # Reads when it is this pull's turn to write: a client that does not read costs one frame, not one per pull.
        with BorrowedViews() as borrowed:  # copies batches only once, from the file into the frame
            frame = self._read_frame(queue, topic, cuts, borrowed)
        if frame is not None:
            self._told()
        return frame

    def _check_term(self, queue: QueueKey, term: int) -> None:
        before, self._term = self._term, term
        if not before:
            return
        end = self._engine.store.end_since(queue, before)
        if self._offset > end:
            self._bounds = self._bounds[0], end
            raise OffsetOutOfRange(
                f"offset {self._offset} of queue {self._request.topic}/{queue.queue_id} was cut off: "
                f"the queue ended at {end} after term {before}, and continues with other messages"
            )

    def _wait(self, queue: QueueKey, first: int, end: int) -> bytes | None:
        until = self._told_at + self._wait_s
        if self._loop.time() < until:
            at = until if self._silent_since is None else min(until, self._silent_since + PROGRESS_INTERVAL_S)
            self._waits_at, self._timer = queue, self._loop.call_at(at, self.wake)
            self._engine.arrivals.add(queue, self)
            return None
        self.is_over = True
        return self._progress(first, end)

    def wake(self) -> None:
        """Check again: a batch came, the lease is lost, the topic is gone, or the time is over."""
        self._stop_waiting()
        self._ready(self)

    def _stop_waiting(self) -> None:
        if self._timer is not None and self._waits_at is not None:
            self._timer.cancel()
            self._timer = None
            self._engine.arrivals.discard(self._waits_at, self)

    def _read_frame(self, queue: QueueKey, topic: Topic, cuts: int, borrowed: BorrowedViews) -> bytes | None:
        first, end = self._bounds
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
        self.is_over = self._messages_left <= 0 or self._bytes_left <= 0
        frame = broker_pb2.PullFrame(
            pull_id=self._request.pull_id,
            min_offset=first,
            max_offset=end,
            end=self.is_over,
            next_offset=next_offset,
            from_slave=not self._engine.store.writer.leads,
            term=self._term,
            is_compacted=bool(topic.key_queues),
        )
        return _encoded(frame, batches, size)

    def _progress(self, first: int, end: int) -> bytes:
        passed = self._silent_since is not None
        self._told()
        return self._frame(min_offset=first, max_offset=end, next_offset=self._offset if passed else 0)

    def _told(self) -> None:
        self._told_at = self._loop.time()
        self._silent_since = None

    def _checked_queue(self, state: State) -> tuple[QueueKey, Topic]:
        request = self._request
        self._caller.check(request, ("pull", request.topic, request.lease.group))
        topic = state.topics.get(request.topic) or state.topic(request.topic)
        if request.HasField("topic_id") and topic.identity != (request.topic_id.number, request.topic_id.created_ms):
            raise TopicRecreated.of(request.topic)
        queue = state.queue(request.topic, request.queue_id)
        state.check_allowed(topic, Permission.READ)
        if request.HasField("lease"):
            lease = request.lease
            self._engine.writes.check()  # a broker that is no longer the master must not trust its leases
            self._engine.tables.check_lease(LeaseKey(lease.group, queue), lease.client_id, lease.epoch)
        return queue, topic

    def _frame(self, **fields: Any) -> bytes:
        pull_id, is_slave = self.pull_id, not self._engine.store.writer.leads
        frame = broker_pb2.PullFrame(pull_id=pull_id, end=self.is_over, from_slave=is_slave, term=self._term, **fields)
        return frame.SerializeToString()


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
