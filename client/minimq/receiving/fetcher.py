"""Fetches the queues of one consumer: carries out what their readers decide, and hands messages out.

Frames arrive on the threads of the pull streams, messages leave on the caller's thread, which also tells the user of
queues that were gained or lost. Failed pulls are tried again by `tick`, which the owner calls from time to time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from minimq.connection.client import ClusterClient
from minimq.connection.read_places import ReadPlaces
from minimq.filtering.message_filter import MessageFilter
from minimq.receiving.changes import Changes
from minimq.receiving.commits import Commits
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.fetcher_callbacks import FetcherCallbacks
from minimq.receiving.hand_out import HandOut
from minimq.receiving.member_state import Grant
from minimq.receiving.offset_reset import OffsetReset
from minimq.receiving.offset_stores import BrokerOffsets
from minimq.receiving.pulls import Pulls
from minimq.receiving.queue_decisions import Decision, FetchOptions, LeaseOver, ReaderState
from minimq.receiving.queue_events import Announcement, QueueEvents
from minimq.receiving.queue_reader import QueueReader
from minimq.receiving.read_errors import ReadErrors
from minimq.transport.client_log import client_logger
from minimq_common.allocator import keep_freed_memory
from minimq_common.errors import InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue

log = client_logger(__name__)


class Fetcher:
    """The queues that one consumer reads. Thread-safe, but only one thread may take messages."""

    def __init__(
        self,
        client: ClusterClient,
        places: ReadPlaces,
        group: str,
        client_id: str,
        options: ConsumerOptions,
        callbacks: FetcherCallbacks,
    ) -> None:
        keep_freed_memory()  # large frames come one after the other
        self._group = group
        self._callbacks = callbacks
        self._options = FetchOptions(
            options.prefetch_messages,
            options.prefetch_bytes,
            wait_s=options.wait_s,
            offset_reset=options.offset_reset,
            slaves=options.read_from_slaves,
            recommit_s=options.recommit_interval_s,
        )
        self._passed_over = 0  # in queues that are not read any more
        #: Tells when there may be something to take or to do.
        self._changes = Changes()
        #: Protects everything below and all readers.
        self._lock = self._changes.lock
        self._readers: OrderedDict[MessageQueue, QueueReader] = OrderedDict()
        #: The wanted tags by topic, as hashes; all tags where there are none.
        self._tag_hashes: dict[str, tuple[int, ...]] = {}
        self._pulls = Pulls(self._changes, places, client, self._tag_hashes, self._decided, group, client_id)
        store = BrokerOffsets(
            client.connection.brokers,
            lambda queue: places.of(queue).address,
            group,
            client_id,
            options.request_timeout_s,
        )
        self.commits = Commits(self._lock, self._readers, store)
        #: The topics whose messages are chosen by their keys or properties.
        self._filtered_by_texts: set[str] = set()
        self._events = QueueEvents(self._readers)
        self._errors = ReadErrors()
        self.hand_out = HandOut(
            self._changes, self._readers, self._events, self._errors, self.announce, self._carry_out, client.connection
        )

    # ---- assignment -----------------------------------------------------------------------------

    def start(self, queue: MessageQueue, grant: Grant, *, tell: bool = True) -> None:
        """Read a queue from an offset on; under a lease when there is an epoch. A queue that is read begins anew.

        The user's callback runs before the first message is handed out, unless `tell` is false.
        """
        with self._lock:
            self._stop(queue, tell=tell)
            self.commits.begins(queue)
            reader = self._readers[queue] = QueueReader(
                queue,
                grant,
                self._options,
                delay_ms=self._callbacks.delay_ms(queue),
                check_texts=queue.topic in self._filtered_by_texts,
            )
            if tell:
                self._events.gained(queue)
            self._carry_out(reader, reader.tick(time.monotonic()))

    def stop(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Stop reading queues, and forget what was fetched. Returns the queues that were read, and their epochs."""
        with self._lock:
            stopped = [reader for queue in queues if (reader := self._stop(queue, tell=False))]
            self._changes.notify()
            return {reader.queue: reader.lease.epoch for reader in stopped}

    def granted(self, queue: MessageQueue, grant: Grant) -> None:
        """Read a queue of the group, or go on where it is read if its lease was only renewed."""
        with self._lock:
            reader = self._readers.get(queue)
            if reader is not None and (decisions := reader.renewed(grant, time.monotonic())) is not None:
                self._carry_out(reader, decisions)
                return
        self._lose([queue])
        self._callbacks.begins(queue, grant)
        self.start(queue, grant)

    def revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing more out of queues that leave; their owner commits and stops them."""
        with self._lock:
            for queue in queues:
                reader = self._readers.get(queue)
                if reader is not None:
                    self._carry_out(reader, reader.leave())

    def lost(self, queues: Sequence[MessageQueue], *, deleted: bool = False) -> None:
        """Stop reading queues that were taken away, or deleted; the thread that takes messages calls `on_lost`."""
        self._callbacks.lost(queues)
        if deleted:
            with self._lock:
                self.commits.deleted(queues)
        self._lose(queues)

    def unconfirmed(self, queue: MessageQueue, until: float) -> None:
        """Hand nothing out of a queue after that time, on the monotonic clock, until it is granted again."""
        with self._lock:
            reader = self._readers.get(queue)
            if reader is not None:
                reader.unconfirmed(until)

    def _lose(self, queues: Iterable[MessageQueue]) -> None:
        with self._lock:
            for queue in queues:
                self._stop(queue, tell=True)
            self._changes.notify()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read, sorted."""
        with self._lock:
            return sorted(self._readers)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read and whose topics are there, as far as is known, sorted."""
        with self._lock:
            return sorted(queue for queue, reader in self._readers.items() if not reader.is_deleted)

    def deleted(self) -> list[MessageQueue]:
        """Return the queues that are read although their brokers do not have their topics any more."""
        with self._lock:
            return [queue for queue, reader in self._readers.items() if reader.is_deleted]

    def leaving(self) -> list[MessageQueue]:
        """Return the queues that wait to be committed and stopped."""
        with self._lock:
            return [queue for queue, reader in self._readers.items() if reader.state is ReaderState.LEAVING]

    def unannounce(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return those of the queues that were announced as gained, and announce nothing more of them."""
        with self._lock:
            return self._events.unannounce(queues)

    def want(self, topic: str, wanted: MessageFilter) -> None:
        """Fetch only batches that may have a wanted tag; to be called before queues of the topic are read."""
        with self._lock:
            self._tag_hashes[topic] = wanted.tag_hashes
            if wanted.reads_texts:
                self._filtered_by_texts.add(topic)

    def pause(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        """Hand nothing out of some queues, or again."""
        with self._lock:
            for reader in [self._reader(queue) for queue in queues]:  # all or none
                reader.pause(paused=paused)
            self._changes.notify()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset. Raises `InvalidArgument` when the queue is not read."""
        with self._lock:
            reader = self._reader(queue)
            self._carry_out(reader, reader.seek(offset, time.monotonic()))

    @property
    def lock(self) -> threading.RLock:
        """The lock of the readers."""
        return self._lock

    def reader(self, queue: MessageQueue) -> QueueReader | None:
        """Return the reader of a queue; the caller holds the lock."""
        return self._readers.get(queue)

    def go_back(self, queue: MessageQueue, offset: int) -> None:
        """Hand messages out again from an offset on, which is no seek. On the event loop of the connection."""
        with self._lock:
            reader = self._reader(queue)
            self._carry_out(reader, reader.go_back(offset, time.monotonic()))

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset that each queue's next message has."""
        with self._lock:
            return {queue: reader.position for queue, reader in self._readers.items()}

    def at_end(self) -> bool:
        """Tell whether everything that was stored when last heard of has been handed out."""
        with self._lock:
            return all(reader.at_end for reader in self._readers.values())

    @property
    def missed_messages(self) -> int:
        """Number of messages that were passed over because they were not stored any more."""
        return self._events.missed_messages

    @property
    def passed_over(self) -> int:
        """Number of messages that brokers have not sent, since their tags are not wanted."""
        with self._lock:
            return self._passed_over + sum(reader.passed_over for reader in self._readers.values())

    # ---- callbacks and errors --------------------------------------------------------------------

    def announce(self) -> None:
        """Tell the user of queues that were gained and lost; only by the thread that takes messages."""
        if not self._events.are_there:
            return
        announcement = Announcement([], [])
        try:
            with self._lock:
                announcement = self._events.take()
            announcement.make(self._callbacks.announce, self._callbacks.offset_reset)
        except BaseException:  # such as Ctrl-C: the user has not heard of what is left
            with self._lock:
                self._events.put_back(announcement)
            raise

    def failed(self, error: MiniMQError) -> None:
        """Let the next `take` raise an error."""
        with self._lock:
            self._errors.failure = error
            self._changes.notify()

    def refused(self, error: MiniMQError | None) -> None:
        """Let each `take` raise an error from now on, or none any more."""
        with self._lock:
            self._errors.refusal = error
            self._changes.notify()

    def halt(self) -> None:
        """Hand nothing more out: a `take` that waits raises `Closed`, and so does each further one."""
        with self._lock:
            self._errors.has_halted = True
            self._changes.notify()

    # ---- fetching -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Try failed pulls again, and read elsewhere what belongs there now; to be called a few times a second."""
        now = time.monotonic()
        with self._lock:
            for reader in self._readers.values():
                self._pulls.tick(reader, now)

    def close(self) -> None:
        """End all streams. Idempotent."""
        with self._lock:
            self._errors.has_halted = True
            streams = self._pulls.end()
            self._passed_over += sum(reader.passed_over for reader in self._readers.values())
            self._readers.clear()
            self._changes.notify()
        for stream in streams:
            stream.close()

    def _carry_out(self, reader: QueueReader, decisions: Sequence[Decision]) -> None:
        self._pulls.carry_out(reader, decisions)
        self._changes.notify()

    def _decided(self, reader: QueueReader, decision: LeaseOver | OffsetReset) -> None:
        if isinstance(decision, LeaseOver):
            log.info("consumer: lost queue=%s reason=%s", reader.queue, decision.error)
            self._callbacks.lease_over(reader.queue, decision.epoch, decision.error)
        else:
            log.warning("consumer: group=%s %s", self._group, decision)
            self._events.reset(reader, decision)

    def _reader(self, queue: MessageQueue) -> QueueReader:
        reader = self._readers.get(queue)
        if reader is None:
            raise InvalidArgument(f"queue {queue} is not assigned to this consumer")
        return reader

    def _stop(self, queue: MessageQueue, *, tell: bool) -> QueueReader | None:
        reader = self._readers.pop(queue, None)
        if reader is None:
            return None
        self._carry_out(reader, reader.cancel())
        self._passed_over += reader.passed_over
        self.commits.leaves(reader)
        self._events.lost(queue, tell=tell)
        return reader
