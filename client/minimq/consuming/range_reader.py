"""Reads ranges of queues, for jobs that plan their reads in advance.

No consumer group is involved: nothing is committed, and any number of readers may read the same range.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import Finalizer
from minimq.connection.replica_selector import ReplicaSelector
from minimq.consuming.commits import queue_bounds
from minimq.consuming.member_state import Grant
from minimq.consuming.pulls import Pulls
from minimq.consuming.queue_decisions import Decision, FetchOptions, Frame, Pull
from minimq.consuming.queue_reader import QueueReader
from minimq.consuming.received import EncodedRecords, ReceivedBatch
from minimq.options import check_above_zero
from minimq_common.batch.header import tag_hash
from minimq_common.errors import DeadlineExceeded, MinimqError, OffsetOutOfRange, TopicRecreated, Unavailable
from minimq_common.model import MessageQueue, TopicId, TopicRoute
from minimq_common.security.credentials import CredentialsArgument

#: No limit: the buffer is limited in bytes, and a pull by the end of the range.
_MAX_MESSAGES = 1 << 40
#: At most about 1/4 of the buffer is handed to the reading thread at once.
_PART = 4


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """Options of a `RangeReader`."""

    #: Prefetch limit of one range; the last batch may exceed it.
    buffer_bytes: int = 8 << 20
    #: A pull without an answer for this long is restarted.
    answer_timeout_s: float = 10.0
    #: A read without progress for this long fails.
    max_wait_s: float = 30.0
    read_from_slaves: bool = True
    credentials: CredentialsArgument | None = None

    def __post_init__(self) -> None:
        check_above_zero(self)


class RangeReader:
    """Reads ranges of queues. Thread-safe. Create it after a fork, not before."""

    def __init__(
        self, nameserver: str | Sequence[str] | Cluster | None = None, options: RangeOptions | None = None
    ) -> None:
        self.options = options or RangeOptions()
        self._client = ClusterClient(nameserver, credentials=self.options.credentials)
        self._routes = self._client.routes
        #: Which server of a broker set the queues are read from.
        self.places = ReplicaSelector(self._client, slaves=self.options.read_from_slaves)
        self._fetch_options = FetchOptions(_MAX_MESSAGES, self.options.buffer_bytes)
        self._readings: set[_Reading] = set()
        self._finalizer = Finalizer(self, self._client.close)

    def read(
        self,
        queue: MessageQueue,
        start: int,
        end: int,
        tags: Collection[str] = (),
        term: int = 0,
        topic_id: TopicId | None = None,
    ) -> Generator[ReceivedBatch, None, None]:
        """Yield the batches that hold the offsets from `start` up to but not including `end`, in order.

        With `tags`, batches known to hold none of them are left out; the others may hold further messages.

        Batches are not cut: the first may begin before `start`, the last may end after `end`. After a broken
        connection, reading continues at the next offset. Closing the generator cancels the pull at the broker.

        After an unclean failover the new master may have other messages at the same offsets; they are never mixed.
        """
        fetched = QueueReader(queue, Grant(0, start, 0, term=term), self._fetch_options)  # epoch 0: no lease
        reading = _Reading(self, self._client, RangeRead(fetched, end, topic_id), tags)
        self._readings.add(reading)
        try:
            yield from reading.batches()
        finally:
            reading.end_soon()
            self._readings.discard(reading)

    def bounds(self, queue: MessageQueue, topic_id: TopicId | None = None) -> tuple[int, int]:
        """Return the first stored offset of a queue, and the offset of its next message."""
        found = self._client.wait(lambda: queue_bounds(self.places, queue, self.options.answer_timeout_s))
        if topic_id not in (None, found.topic_id):
            raise TopicRecreated.of(queue.topic)
        return found.first, found.end

    def is_compacted(self, topic: str) -> bool:
        """Return whether a topic is compacted, so that offsets may be missing. Raises as `look_up`."""
        self.look_up(topic)
        route = self._routes.known(topic)
        return route is not None and bool(route.key_queues)

    def look_up(self, topic: str) -> None:
        """Look up the route of a topic. Raises as `RouteCache.find_within`."""
        self._client.wait(lambda: self._routes.find_within(topic, self.options.max_wait_s))

    def learn(self, routes: Iterable[TopicRoute]) -> None:
        """Add routes that another process has found, so that their topics can be read without a name server."""
        for route in routes:
            self._routes.learn(route)

    def close(self) -> None:
        """Close all connections; running reads fail with `Closed`. Idempotent."""
        self._finalizer.close(self._close)

    def _close(self) -> None:
        self._client.close()
        for reading in [*self._readings]:
            reading.end_soon()


class RangeRead:
    """Reads a queue with a `QueueReader`, and stops at the end of a range: pure.

    It must not mix messages of two logs: after an unclean failover, the new master may have other messages at the same
    offsets. So it drops a frame of a later term, and verifies by a pull at the end of the range that this term has it
    all.
    """

    def __init__(self, reader: QueueReader, end: int, topic_id: TopicId | None = None) -> None:
        self.reader = reader
        self.queue, self.lease = reader.queue, reader.lease
        self.is_pulling, self.cancel, self.pull_failed = reader.is_pulling, reader.cancel, reader.pull_failed
        self.end = end
        self._topic_id = topic_id
        #: Term of the log that the range belongs to; 0 while it is not known.
        self._term = reader.lease.term
        self._must_verify = False
        #: A later term has replaced messages of the range.
        self.is_taken_back = False

    def tick(self, now: float) -> list[Decision]:
        return self._limited(self.reader.tick(now)) if self.reader.fetch_offset < self.end else []

    def frame_arrived(self, number: int, frame: Frame, now: float) -> list[Decision]:
        if not self.is_pulling(number):
            return []
        if frame.failure is not None:
            self.is_taken_back = self._must_verify and isinstance(frame.failure, OffsetOutOfRange)
            if frame.from_slave and not frame.failure.retriable:  # its master may have it: try again there
                frame = frame._replace(failure=Unavailable(f"a slave does not have it: {frame.failure.message}"))
        elif self._must_verify or 0 < self._term < frame.term:
            if self._must_verify:
                self._term = max(frame.term, self._term)
            self._must_verify = not self._must_verify
            return [*self.cancel(), *self.tick(now)]
        else:
            frame = self._cut(frame)
        return self._limited(self.reader.frame_arrived(number, frame, now))

    def _cut(self, frame: Frame) -> Frame:
        if frame.max_offset >= self.end:
            self._term = max(frame.term, self._term)
        if frame.is_last and not frame.batches and max(frame.next_offset, self.reader.fetch_offset) < self.end:
            kind = Unavailable if frame.from_slave else OffsetOutOfRange
            text = f"the queue ends at {frame.max_offset}{' at its slave' * frame.from_slave}"
            return frame._replace(failure=kind(text))
        # The next batch with a wanted tag may lie beyond the range.
        batches = [stored for stored in frame.batches if stored.base_offset < self.end]
        beyond = self.end if len(batches) < len(frame.batches) else 0
        return frame._replace(batches=batches, next_offset=max(frame.next_offset, beyond))

    def _limited(self, decisions: Sequence[Decision]) -> list[Decision]:
        found: list[Decision] = []
        for decision in decisions:
            if not isinstance(decision, Pull):
                found.append(decision)
            elif self._must_verify:
                pull = Pull(decision.number, self.end, 1, 1, term=self._term, topic_id=self._topic_id)
                found.append(pull)
            elif decision.offset < self.end:
                most = min(decision.max_messages, self.end - decision.offset)
                found.append(decision._replace(max_messages=most, wait_s=0.0, term=0, topic_id=self._topic_id))
            else:
                self.reader.cancel()  # the range is read to its end
        return found


class _Reading:
    """The read of one range: executes the decisions of its `RangeRead` on the event loop of the connection.

    `batches` runs on the reading thread; any thread may end it.
    """

    def __init__(self, owner: RangeReader, client: ClusterClient, reading: RangeRead, tags: Collection[str]) -> None:
        reader, end = reading.reader, reading.end
        self._owner = owner
        self._client = client
        self._options = owner.options
        self._queue = reader.queue
        self._next = reader.position  # the next offset to yield
        self._end = end
        self._tags = tags
        # The rest belongs to the event loop.
        self._range, self._reader = reading, reader
        self._changed = asyncio.Event()
        hashes = sorted(set(map(tag_hash, tags)))
        self._pulls: Pulls[RangeRead] = Pulls(lambda _: self._changed.set(), owner.places, client, lambda _: hashes)

    def batches(self) -> Iterator[ReceivedBatch]:
        if self._next < self._end:
            self._look_up_topic()
        while found := self._client.wait(self._take):
            for stored, passed_over in found:
                batch = ReceivedBatch(self._queue, stored)
                if passed_over and not self._tags:
                    reason = f"the broker went on at {batch.base_offset}"
                    raise self._client.wait(partial(self._out_of_range, reason))
                self._next = batch.end_offset
                yield batch
                self._client.check_open()

    def end_soon(self) -> None:
        """Cancel the pull and close the streams, without waiting."""
        self._client.connection.call_soon(self._close)

    def _close(self) -> None:
        self._pulls.carry_out(self._range, self._range.cancel())
        self._pulls.close()

    def _look_up_topic(self) -> None:
        try:
            self._owner.look_up(self._queue.topic)
        except MinimqError as error:
            raise self._unreadable(error) from None

    async def _take(self) -> list[tuple[EncodedRecords, int]]:
        """Wait for the next batches and return them as `ReadAhead.take_batch` does; none at the end of the range.

        Begins the next pull before it returns.
        """
        asked_at = time.monotonic()
        give_up_at = asked_at + self._options.max_wait_s
        known: MinimqError | None = None
        while True:
            self._changed.clear()
            now = time.monotonic()
            found = self._buffered_batches()
            self._pulls.tick(self._range, now)
            if found or self._reader.position >= self._end:
                return found
            await self._raise_failure(give_up_at)
            failure, wake_at = self._reader.failure, self._reader.wake_at
            if failure is known:
                pauses = wake_at < math.inf
                until = wake_at if pauses else asked_at + self._options.answer_timeout_s
                if not await self._changed_within(until - now) and not pauses:
                    silence = f"no answer from its broker within {self._options.answer_timeout_s} s"
                    self._pulls.give_up(self._range, DeadlineExceeded(silence), time.monotonic())
                asked_at = time.monotonic()
            elif failure is not None and failure.refresh_route:
                with suppress(MinimqError):  # without an answer, keep the known route
                    await self._client.connection.routes.refresh(self._queue.topic, self._client.timeout_s)
            known = failure

    def _buffered_batches(self) -> list[tuple[EncodedRecords, int]]:
        found: list[tuple[EncodedRecords, int]] = []
        size, most = 0, max(self._options.buffer_bytes // _PART, 1)
        while size < most and (item := self._reader.take_batch()) is not None:
            found.append(item)
            size += len(item[0].data)
        return found

    async def _changed_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _raise_failure(self, give_up_at: float) -> None:
        reader = self._reader
        if isinstance(reader.error, OffsetOutOfRange):
            raise await self._out_of_range(reader.error.message)
        if reader.error is not None:
            raise self._unreadable(reader.error)
        if reader.failure is not None and give_up_at <= reader.wake_at < math.inf:
            raise self._unreadable(reader.failure)

    def _unreadable(self, error: MinimqError) -> MinimqError:
        return error.with_message(f"queue {self._queue} cannot be read from offset {self._next} on: {error.message}")

    async def _out_of_range(self, reason: str) -> OffsetOutOfRange:
        is_one = self._end - self._next == 1
        offsets = f"offset {self._next}" if is_one else f"offsets {self._next} to {self._end - 1}"
        wanted = f"{offsets} of queue {self._queue} cannot be read"
        if self._range.is_taken_back:
            return OffsetOutOfRange(f"{wanted}: a new master does not have all messages of the former one: {reason}")
        with suppress(MinimqError):
            found = await queue_bounds(self._owner.places, self._queue, self._options.answer_timeout_s)
            reason = f"it holds {found.first} to {found.end - 1}" if found.first < found.end else "the queue is empty"
        return OffsetOutOfRange(f"{wanted}: {reason}")
