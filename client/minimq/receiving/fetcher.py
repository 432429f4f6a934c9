"""Fetches the queues of one consumer: carries out what their readers decide, and hands messages out.

Frames arrive on the threads of the pull streams, messages leave on the caller's thread, which also tells the user of
queues that were gained or lost. Failed pulls are tried again by `tick`, which the owner calls from time to time.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from minimq.connection.client import ClusterClient
from minimq.connection.read_places import ReadPlaces
from minimq.filtering.message_filter import MessageFilter
from minimq.receiving.commits import Commits
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.member_state import Grant
from minimq.receiving.offset_reset import OffsetReset
from minimq.receiving.offset_stores import BrokerOffsets
from minimq.receiving.pulls import Pulls
from minimq.receiving.queue_decisions import Decision, FetchOptions, LeaseOver, QueueEvent, ReaderState
from minimq.receiving.queue_reader import QueueReader
from minimq.receiving.read_ahead import FetchedBatch
from minimq.receiving.received import ReceivedMessage
from minimq_common.allocator import keep_freed_memory
from minimq_common.errors import Closed, CorruptBatch, InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetcherCallbacks:
    """The calls of a fetcher to its consumer. None of the first three may block.

    Attributes:
        lease_over: gets a queue, its epoch and the reason when its broker does not know the lease.
        begins: gets a queue that is about to be read, and its first offset.
        lost: gets queues that were taken away.
        announce: gets queues that were gained or lost, in the thread that takes messages and before the first message
            of those gained.
        offset_reset: gets what was missed when a queue goes on elsewhere, in the thread that takes messages.
        delay_ms: returns how long the messages of a queue wait after they were stored.
    """

    lease_over: Callable[[MessageQueue, int, MiniMQError], None]
    begins: Callable[[MessageQueue, int], None]
    lost: Callable[[Sequence[MessageQueue]], None]
    announce: Callable[[QueueEvent, list[MessageQueue]], None]
    offset_reset: Callable[[OffsetReset], None]
    delay_ms: Callable[[MessageQueue], int]


class Fetcher:
    """The queues that one consumer reads. Thread-safe, but only one thread may take messages.

    Args:
        client: reaches the brokers.
        places: where the queues are read.
        group: the consumer group.
        client_id: under which leases are held.
        options: of the consumer.
        callbacks: for its owner.

    Attributes:
        commits: records how far it is.
        missed_messages: how many were passed over because they were not stored any more.
    """

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
        self.missed_messages = 0
        self._passed_over = 0  # in queues that are not read any more
        #: Protects everything below and all readers; notified when there may be something to take or to do.
        self._changed = threading.Condition()
        self._readers: dict[MessageQueue, QueueReader] = {}
        #: The wanted tags by topic, as hashes; all tags where there are none.
        self._tag_hashes: dict[str, tuple[int, ...]] = {}
        self._pulls = Pulls(self._changed, places, client, self._tag_hashes, self._decided, group, client_id)
        store = BrokerOffsets(
            client, lambda queue: places.of(queue).address, group, client_id, options.request_timeout_s
        )
        self.commits = Commits(self._changed, self._readers, store)
        #: The topics whose messages are chosen by their keys or properties.
        self._filtered_by_texts: set[str] = set()
        #: What the user was not told yet, in its order, and which queues he knows to be this consumer's.
        self._events: list[tuple[QueueEvent, MessageQueue]] = []
        self._resets: list[tuple[QueueReader, OffsetReset]] = []
        self._announced: set[MessageQueue] = set()
        #: Until when leases hold, by broker name, on the monotonic clock.
        self._trusted_until: dict[str, float] = {}
        self._failure: MiniMQError | None = None
        self._refusal: MiniMQError | None = None
        #: Of which queue messages were handed out last, and how often its reader had moved by then.
        self._taken: tuple[QueueReader, int] | None = None
        self._woken = False
        self._halted = False

    # ---- assignment -----------------------------------------------------------------------------

    def start(self, queue: MessageQueue, grant: Grant, *, tell: bool = True) -> None:
        """Read a queue from an offset on; under a lease when there is an epoch. A queue that is read begins anew.

        The user is told before the first message is handed out, unless `tell` is false.
        """
        with self._changed:
            self._stop(queue, tell=tell)
            reader = self._readers[queue] = QueueReader(
                queue,
                grant,
                self._options,
                delay_ms=self._callbacks.delay_ms(queue),
                check_texts=queue.topic in self._filtered_by_texts,
            )
            if tell:
                self._events.append((QueueEvent.GAINED, queue))
            self._carry_out(reader, reader.tick(time.monotonic()))

    def stop(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Read queues no more, and forget what was fetched. Returns those that were read, and under which epochs."""
        with self._changed:
            stopped = [reader for queue in queues if (reader := self._stop(queue, tell=False))]
            self._changed.notify_all()
            return {reader.queue: reader.lease.epoch for reader in stopped}

    def granted(self, queue: MessageQueue, grant: Grant) -> None:
        """Read a queue of the group, or go on where it is read if its lease was only renewed."""
        with self._changed:
            reader = self._readers.get(queue)
            if reader is not None and (decisions := reader.renewed(grant, time.monotonic())) is not None:
                self._carry_out(reader, decisions)
                return
        self._lose([queue])
        self._callbacks.begins(queue, grant.offset)
        self.start(queue, grant)

    def revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing more out of queues that others shall have; their owner commits and stops them."""
        with self._changed:
            for queue in queues:
                reader = self._readers.get(queue)
                if reader is not None:
                    self._carry_out(reader, reader.leave())

    def lost(self, queues: Sequence[MessageQueue]) -> None:
        """Read queues no more that were taken away; the user is told by the thread that takes messages."""
        self._callbacks.lost(queues)
        self._lose(queues)

    def trusted(self, broker_name: str, until: float) -> None:
        """Hand nothing out under the leases of a broker after that time, on the monotonic clock."""
        with self._changed:
            self._trusted_until[broker_name] = until
            self._changed.notify_all()

    def doubted(self, queue: MessageQueue, until: float) -> None:
        """Hand nothing out of a queue after that time, on the monotonic clock, until it is granted again."""
        with self._changed:
            reader = self._readers.get(queue)
            if reader is not None:
                reader.doubt(until)

    def _lose(self, queues: Iterable[MessageQueue]) -> None:
        with self._changed:
            for queue in queues:
                self._stop(queue, tell=True)
            self._changed.notify_all()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read, sorted."""
        with self._changed:
            return sorted(self._readers)

    def leaving(self) -> list[MessageQueue]:
        """Return the queues that wait to be committed and stopped."""
        with self._changed:
            return [queue for queue, reader in self._readers.items() if reader.state is ReaderState.LEAVING]

    def unannounce(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return the queues of which the user knows that they are this consumer's; he is told no more of them."""
        with self._changed:
            known = self._announced & set(queues)
            self._announced -= known
            return sorted(known)

    def want(self, topic: str, wanted: MessageFilter) -> None:
        """Fetch only batches in which a wanted tag may be; to be said before queues of the topic are read."""
        with self._changed:
            self._tag_hashes[topic] = wanted.tag_hashes
            if wanted.reads_texts:
                self._filtered_by_texts.add(topic)

    def pause(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        """Hand nothing out of some queues, or again."""
        with self._changed:
            for reader in [self._reader(queue) for queue in queues]:  # all or none
                reader.pause(paused=paused)
            self._changed.notify_all()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset. Raises `InvalidArgument` when the queue is not read."""
        with self._changed:
            reader = self._reader(queue)
            self._carry_out(reader, reader.seek(offset, time.monotonic()))

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset that each queue's next message has."""
        with self._changed:
            return {queue: reader.position for queue, reader in self._readers.items()}

    def at_end(self) -> bool:
        """Tell whether everything that was stored when last heard of has been handed out."""
        with self._changed:
            return all(reader.at_end for reader in self._readers.values())

    @property
    def passed_over(self) -> int:
        """Number of messages that brokers have not sent, since their tags are not wanted."""
        with self._changed:
            return self._passed_over + sum(reader.ahead.passed_over for reader in self._readers.values())

    # ---- taking ---------------------------------------------------------------------------------

    def take(self, max_messages: int, timeout_s: float, but: Collection[MessageQueue] = ()) -> list[ReceivedMessage]:
        """Return messages of one queue; nothing when none came in time or a queue has to leave.

        Args:
            max_messages: most messages to return.
            timeout_s: seconds to wait for the first one; `wake` ends the wait.
            but: queues of which nothing is wanted now.

        Raises:
            MiniMQError: a queue cannot be read; other queues go on when called again.
            Closed: the consumer was closed.
        """
        deadline = time.monotonic() + timeout_s
        damaged: FetchedBatch | None = None
        while True:
            unopened: list[FetchedBatch] = []
            self.announce()
            with self._changed:
                while not (self._events or self._resets):
                    self._raise_failure()
                    now = time.monotonic()
                    reader = self._next_reader(now, but)
                    if reader is not None:
                        unopened = reader.ahead.unopened(max_messages, now)
                        if not unopened or unopened[0] is damaged:
                            return self._take(reader, max_messages, now)
                        break
                    left = deadline - now
                    if left <= 0 or self._woken or self.leaving():
                        self._woken = False
                        return []
                    self._changed.wait(left)
            for batch in unopened:  # without the lock: the frames of other queues come in meanwhile
                try:
                    batch.open()
                except (CorruptBatch, InvalidArgument):  # `take` raises it once all before it is handed out
                    damaged = batch
                    break

    def is_current(self, queue: MessageQueue) -> bool:
        """Tell whether the latest `take` was of this queue, and nobody has sought or begun it anew since."""
        with self._changed:
            reader = self._readers.get(queue)
            return reader is not None and self._taken == (reader, reader.moves)

    def give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Hand out again what the latest `take` has returned last, unless the queue is read elsewhere by now."""
        with self._changed:
            if self.is_current(messages[0].queue):
                self._readers[messages[0].queue].ahead.give_back(messages)

    def wake(self) -> None:
        """End the wait of a `take`, or of the next one, that finds nothing."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _next_reader(self, now: float, but: Collection[MessageQueue]) -> QueueReader | None:
        for queue, reader in self._readers.items():
            if reader.may_hand_out(now, self._trusted_until.get(queue.broker_name, math.inf)) and queue not in but:
                return reader
        return None

    def _take(self, reader: QueueReader, max_messages: int, now: float) -> list[ReceivedMessage]:
        # To the back, so that every queue gets its turn, also when this one is damaged.
        self._readers[reader.queue] = self._readers.pop(reader.queue)
        messages = reader.take(max_messages, now)
        self._taken = reader, reader.moves
        self._pulls.carry_out(reader, reader.tick(now))
        return messages

    def announce(self) -> None:
        """Tell the user of queues that were gained and lost; only by the thread that takes messages."""
        if not (self._events or self._resets):
            return
        with self._changed:
            events, self._events = self._events, []
            found, self._resets = self._resets, []
            resets = [reset for reader, reset in found if self._readers.get(reset.queue) is reader]
            self.missed_messages += sum(reset.missed for reset in resets)
            self._announced |= {queue for event, queue in events if event is QueueEvent.GAINED} & self._readers.keys()
        for event, together in itertools.groupby(events, key=lambda item: item[0]):
            self._callbacks.announce(event, [queue for _, queue in together])
        for reset in resets:
            self._callbacks.offset_reset(reset)

    def failed(self, error: MiniMQError) -> None:
        """Let the next `take` raise an error."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def refused(self, error: MiniMQError | None) -> None:
        """Let each `take` raise an error from now on, or none any more."""
        with self._changed:
            self._refusal = error
            self._changed.notify_all()

    def halt(self) -> None:
        """Hand nothing more out: a `take` that waits raises `Closed`, and so does each further one."""
        with self._changed:
            self._halted = True
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._halted:
            raise Closed("the consumer is closed")
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # which would grow with each time
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        for reader in self._readers.values():
            error = reader.error_to_tell()
            if error is not None:
                raise error

    # ---- fetching -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Try failed pulls again, and read elsewhere what belongs there now; to be called a few times a second."""
        now = time.monotonic()
        with self._changed:
            for reader in self._readers.values():
                self._pulls.tick(reader, now)

    def close(self) -> None:
        """End all streams. Idempotent."""
        with self._changed:
            self._halted = True
            streams = self._pulls.end()
            self._passed_over += sum(reader.ahead.passed_over for reader in self._readers.values())
            self._readers.clear()
            self._changed.notify_all()
        for stream in streams:
            stream.close()

    def _carry_out(self, reader: QueueReader, decisions: Sequence[Decision]) -> None:
        self._pulls.carry_out(reader, decisions)
        self._changed.notify_all()

    def _decided(self, reader: QueueReader, decision: LeaseOver | OffsetReset) -> None:
        if isinstance(decision, LeaseOver):
            log.info("consumer: lost queue=%s reason=%s", reader.queue, decision.error)
            self._callbacks.lease_over(reader.queue, decision.epoch, decision.error)
        else:
            log.warning("consumer: group=%s %s", self._group, decision)
            self._resets.append((reader, decision))

    def _reader(self, queue: MessageQueue) -> QueueReader:
        reader = self._readers.get(queue)
        if reader is None:
            raise InvalidArgument(f"queue {queue} is not assigned to this consumer")
        return reader

    def _stop(self, queue: MessageQueue, *, tell: bool) -> QueueReader | None:
        """End the reading of a queue. The user is told only of the end of what he was told the beginning of."""
        reader = self._readers.pop(queue, None)
        if reader is None:
            return None
        self._carry_out(reader, reader.cancel())
        self._passed_over += reader.ahead.passed_over
        self.commits.leaves(reader)
        if queue not in self._announced:
            self._events = [item for item in self._events if item != (QueueEvent.GAINED, queue)]
        elif tell:
            self._events.append((QueueEvent.LOST, queue))
        self._announced.discard(queue)
        return reader
