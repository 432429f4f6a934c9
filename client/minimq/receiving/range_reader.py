"""Reading a range of one queue from its first offset to its last: for jobs that know in advance what they read.

No consumer group takes part: nothing is committed, and any number of readers may read the same range.
"""

from __future__ import annotations

import queue as queues
import time
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from minimq.options import DEFAULT_NAMESERVER, check_above_zero, nameserver_addresses
from minimq.receiving.pull_stream import PullStream
from minimq.receiving.received import ReceivedBatch, StoredBatch
from minimq.routes.read_places import ReadPlace, ReadPlaces
from minimq.routes.routing import RouteCache
from minimq.transport.broker_link import BrokerLinks
from minimq.transport.dropped import WhenDropped, close_all
from minimq_common.allocator import keep_freed_memory
from minimq_common.batch import tag_hash
from minimq_common.errors import (
    DeadlineExceeded,
    MiniMQError,
    OffsetOutOfRange,
    QueueNotFound,
    Unavailable,
)
from minimq_common.model import MessageQueue
from minimq_common.rpc import from_failure
from minimq_proto.v1 import broker_pb2

#: Waits between two tries, in seconds.
_FIRST_RETRY_S = 0.1
_LONGEST_RETRY_S = 2.0

_Answer = tuple[broker_pb2.PullFrame | None, MiniMQError | None]


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """How ranges are read.

    Attributes:
        buffer_bytes: bytes of one range that may be fetched ahead; the last batch may overshoot them.
        answer_timeout_s: seconds of silence after which a broker that owes an answer is asked anew.
        patience_s: seconds without any progress after which a read fails.
        read_from_slaves: go on at a slave while there is no master that answers.
    """

    buffer_bytes: int = 8 << 20
    answer_timeout_s: float = 10.0
    patience_s: float = 30.0
    read_from_slaves: bool = True

    def __post_init__(self) -> None:
        check_above_zero(self)


class RangeReader:
    """Reads ranges of queues. Thread-safe; a process that forks makes its readers afterwards.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", or a sequence of addresses. Nothing is asked before the first read.
        options: how to read.

    Raises:
        InvalidArgument: an address is not HOST:PORT.
    """

    def __init__(
        self, nameserver: str | Sequence[str] = DEFAULT_NAMESERVER, options: RangeOptions | None = None
    ) -> None:
        #: How ranges are read.
        self.options = options or RangeOptions()
        keep_freed_memory()  # a process that reads ranges passes on as many frames as it can
        self._routes = RouteCache(nameserver_addresses(nameserver))
        self._links = BrokerLinks()
        #: Where the queues of a broker are read.
        self.places = ReadPlaces(self._routes, self._links, slaves=self.options.read_from_slaves)
        self._when_dropped = WhenDropped(self, partial(close_all, self._links, self._routes))

    def read(
        self, queue: MessageQueue, start: int, end: int, tags: Collection[str] = (), term: int = 0
    ) -> Generator[ReceivedBatch, None, None]:
        """Yield the batches that hold the offsets from `start` up to but not including `end`, in order.

        With tags, batches are left out that are known to hold none of them; the others may hold further messages.

        Batches are not cut: the first may begin before `start` and the last may go beyond `end`. When a connection
        breaks, reading goes on at the next offset. Closing the generator ends the pull at the broker.

        The next master of an asynchronous one may have other messages at the same offsets; they are not mixed.

        Args:
            queue: the queue.
            start: the first offset.
            end: the offset behind the last one.
            tags: what is wanted; all when there are none.
            term: the term of the log in which the range was seen, 0: that in which the reading begins.

        Raises:
            OffsetOutOfRange: an offset of the range is not stored, `bounds` tells which are; or a later master does not
                have all that was there in that term.
            CorruptBatch: a batch is damaged.
            TopicNotFound, QueueNotFound: there is no such queue.
            MiniMQError: nothing came for `patience_s` seconds; the class is that of the last failure.
        """
        reading = _Reading(self, queue, start, end, tags, term)
        try:
            yield from reading.batches()
        finally:
            reading.disconnect()

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the first stored offset of a queue and the one that its next message will get.

        Raises:
            TopicNotFound, QueueNotFound: there is no such queue.
            MiniMQError: its broker is not known or did not answer.
        """
        request = broker_pb2.DescribeTopicRequest(topic=queue.topic)
        answer = self.places.call(queue, lambda stub: stub.DescribeTopic, request, self.options.answer_timeout_s)
        for status in answer.queues:
            if status.queue_id == queue.queue_id:
                return status.min_offset, status.max_offset
        raise QueueNotFound(f"queue {queue} does not exist: its broker has 0 to {len(answer.queues) - 1}")

    def connect(self, queue: MessageQueue) -> tuple[PullStream, ReadPlace]:
        """Return a new stream to the broker of a queue. Raises what `RouteCache.route` does, and `Unavailable`."""
        self._routes.route(queue.topic)
        place = self.places.of(queue)
        return PullStream(self.places.link(place)), place

    def refresh(self, topic: str) -> None:
        """Ask where a topic is now; without an answer the route that is known stands."""
        with suppress(MiniMQError):
            self._routes.refresh(topic)

    def close(self) -> None:
        """End all connections; reads under way fail. Idempotent."""
        self._when_dropped.closed()
        self._links.close()
        self._routes.close()


class _Reading:
    """One range on its way. Belongs to one thread; only the inbox is filled by another, that of the pull stream."""

    def __init__(
        self, reader: RangeReader, queue: MessageQueue, start: int, end: int, tags: Collection[str], term: int
    ) -> None:
        self._reader = reader
        self._queue = queue
        self._end = end
        self._tag_hashes = sorted(set(map(tag_hash, tags)))
        self._options = reader.options
        self._next = start  # offset that is handed out next
        self._fetched = start  # offset after everything that has arrived
        self._stream: PullStream | None = None
        self._place: ReadPlace | None = None  # to which the stream leads
        self._pulling = False
        self._term = term  # in which the range is right; 0 when it is not known yet
        self._asks_for_end = False  # a later term was seen: has it cut the range?
        self._taken_back = ""  # why the range is not that of the term any more
        self._failure: MiniMQError | None = None  # to be raised when everything that came before it is handed out
        self._inbox: queues.SimpleQueue[_Answer] = queues.SimpleQueue()
        self._ready: deque[StoredBatch] = deque()
        self._ready_bytes = 0

    def batches(self) -> Iterator[ReceivedBatch]:
        """Yield the batches."""
        while self._next < self._end:
            stored = self._patiently()
            if stored is None:
                return
            batch = ReceivedBatch(self._queue, stored)
            if not self._tag_hashes and not batch.base_offset <= self._next < batch.end_offset:
                raise self._not_stored(f"the broker went on at {batch.base_offset}")
            self._next = batch.end_offset
            yield batch

    def disconnect(self) -> None:
        """End the stream, if there is one, and forget what is still under way on it."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._pulling = False
        self._inbox = queues.SimpleQueue()

    def _patiently(self) -> StoredBatch | None:
        """Return the next batch as it was stored, None after the last; what may help is tried for a while."""
        give_up = time.monotonic() + self._options.patience_s
        pause_s = _FIRST_RETRY_S
        while True:
            try:
                return self._take()
            except OffsetOutOfRange as error:
                raise self._not_stored(error.message) from None
            except MiniMQError as error:
                self.disconnect()
                pause_s = max(pause_s, error.retry_after_s)
                if not error.retriable or time.monotonic() + pause_s >= give_up:
                    text = f"queue {self._queue} cannot be read from offset {self._next} on: {error.message}"
                    raise error.with_message(text) from None
                if error.refresh_route:
                    self._reader.refresh(self._queue.topic)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_RETRY_S)

    def _take(self) -> StoredBatch | None:
        """Return the next batch, None after the last, and see to it that those after it are on their way."""
        with suppress(queues.Empty):
            while True:
                self._accept(*self._inbox.get_nowait())
        while not self._ready:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._fetched >= self._end:  # the rest was passed over
                return None
            self._pull()
            try:
                self._accept(*self._inbox.get(timeout=self._options.answer_timeout_s))
            except queues.Empty:
                silence = f"no answer from its broker within {self._options.answer_timeout_s} s"
                failure = DeadlineExceeded(silence)
                self._not_reached(failure)
                raise failure from None
        stored = self._ready.popleft()
        self._ready_bytes -= len(stored.data)
        if self._failure is None:
            try:
                self._pull()
            except MiniMQError as error:
                self._failure = error
        return stored

    def _pull(self) -> None:
        """Ask for more, unless that is under way, the end is reached or the buffer is more than half full."""
        room = self._options.buffer_bytes - self._ready_bytes
        if self._pulling or self._fetched >= self._end or 2 * room < self._options.buffer_bytes:
            return
        if self._stream is not None and self._place != self._reader.places.of(self._queue):
            self.disconnect()  # its master is back, or is another one
        if self._stream is None:
            self._stream, self._place = self._reader.connect(self._queue)
        inbox = self._inbox
        request = broker_pb2.PullRequest(topic=self._queue.topic, queue_id=self._queue.queue_id)
        if self._asks_for_end:
            request.offset, request.max_messages, request.max_bytes, request.term = self._end, 1, 1, self._term
        else:
            request.offset, request.max_messages, request.max_bytes = self._fetched, self._end - self._fetched, room
            request.tag_hashes.extend(self._tag_hashes)
        self._stream.pull(request, lambda frame, error: inbox.put((frame, error)))
        self._pulling = True

    def _accept(self, frame: broker_pb2.PullFrame | None, error: MiniMQError | None) -> None:
        """Take an answer in."""
        if frame is None:
            self._failure = error or Unavailable("the connection ended")
            self._not_reached(self._failure)
        elif frame.HasField("failure"):
            self._refused(from_failure(frame.failure), from_slave=frame.from_slave)
        elif self._asks_for_end:
            self._term, self._asks_for_end = max(frame.term, self._term), False
            self.disconnect()  # what else it has is not wanted yet
        elif 0 < self._term < frame.term:
            self._asks_for_end = True
            self.disconnect()
        else:
            self._take_in(frame)
        if self._failure is not None:
            self.disconnect()
        elif frame is not None and frame.end:
            self._pulling = False

    def _refused(self, failure: MiniMQError, *, from_slave: bool) -> None:
        if from_slave and not failure.retriable:
            failure = Unavailable(f"its slave does not have it: {failure.message}")
        elif self._asks_for_end and isinstance(failure, OffsetOutOfRange):
            self._taken_back = failure.message
        self._failure = failure

    def _take_in(self, frame: broker_pb2.PullFrame) -> None:
        if frame.max_offset >= self._end:
            self._term = max(frame.term, self._term)
        for stored in map(StoredBatch.from_wire, frame.batches):
            if stored.base_offset < self._end:  # one with a wanted tag may be beyond
                self._ready.append(stored)
                self._ready_bytes += len(stored.data)
            self._fetched = stored.base_offset + stored.count
        self._fetched = max(self._fetched, frame.next_offset)
        if frame.end and not frame.batches and self._fetched < self._end:
            kind = Unavailable if frame.from_slave else OffsetOutOfRange
            self._failure = kind(f"the queue ends at {frame.max_offset}{' at its slave' * frame.from_slave}")

    def _not_reached(self, failure: MiniMQError) -> None:
        """Read elsewhere, if there is another broker, until this one answers."""
        if self._place is not None:
            self._reader.places.failed(self._place.address, failure)

    def _not_stored(self, reason: str) -> OffsetOutOfRange:
        wanted = f"offsets {self._next} to {self._end - 1} of queue {self._queue} cannot be read"
        if self._taken_back:
            return OffsetOutOfRange(f"{wanted}: a new master does not have all that there was: {self._taken_back}")
        with suppress(MiniMQError):
            first, end = self._reader.bounds(self._queue)
            reason = f"stored are {first} to {end - 1}" if first < end else "the queue is empty"
        return OffsetOutOfRange(f"{wanted}: {reason}")
