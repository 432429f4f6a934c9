"""Fetches the queues of one consumer and offers their messages to the thread that polls.

Everything lives on the event loop of the connection, except for what is marked. `ready` and `changes` cross to the
polling thread: the loop appends to them, the polling thread removes what it has dealt with. So an interrupted poll
loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from minimq.connection.client import ClusterClient
from minimq.connection.loop_thread import set_outcome
from minimq.connection.replica_selector import ReplicaSelector
from minimq.consuming.commits import BrokerOffsets, Commits
from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.member_state import Grant
from minimq.consuming.pulls import Pulls
from minimq.consuming.queue_decisions import Change, Decision, FetchOptions, LeaseOver, OffsetReset, QueueEvent
from minimq.consuming.queue_reader import QueueReader
from minimq.consuming.read_ahead import ReadyBatches
from minimq_common.errors import Closed, InvalidArgument, MinimqError
from minimq_common.model import MessageQueue
from minimq_common.wire.channels import TooManyStreams

log = logging.getLogger(__name__)

#: Prefetched messages of one consumer: bounds the objects of tiny messages, which `prefetch_bytes` hardly counts.
PREFETCH_MESSAGES = 100_000


class Fetcher:
    """Owns the queue readers of one consumer and provides their messages to polls."""

    def __init__(
        self,
        client: ClusterClient,
        places: ReplicaSelector,
        group: str,
        client_id: str,
        options: ConsumerOptions,
        tag_hashes: Callable[[str], Sequence[int]],
        lease_over: Callable[[MessageQueue, int, MinimqError], None],
    ) -> None:
        self._connection = client.connection
        self._group = group
        #: Called with an epoch when a broker no longer knows a lease or, if there is none, the topic.
        self._lease_over = lease_over
        #: Called before a queue of the group is read, and when queues were lost.
        self.on_begin: Callable[[MessageQueue, Grant], object] = lambda *_: None
        self.on_lost: Callable[[Sequence[MessageQueue]], object] = lambda *_: None
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._expected = 0
        self._options = FetchOptions(
            PREFETCH_MESSAGES,
            options.prefetch_bytes,
            offset_reset=options.offset_reset,
            readers=lambda: max(len(self._readers), self._expected, 1),
        )
        self._passed_over = 0  # by readers that have ended
        #: Number of messages that were skipped by offset resets.
        self.missed_messages = 0
        self._pulls: Pulls[QueueReader] = Pulls(
            self._heard, places, client, tag_hashes, self._decided, group, client_id
        )
        store = BrokerOffsets(
            client.connection.brokers,
            lambda queue: places.of(queue).address,
            group,
            client_id,
            options.request_timeout_s,
        )
        self.commits = Commits(self._readers, store)
        #: One hand-over for each queue with messages, in the order of their turns. The polling thread rotates it.
        self.ready: deque[ReadyBatches] = deque()
        #: Queues whose hand-over the polling thread has used up: the next one is due.
        self.used_up: deque[MessageQueue] = deque()
        #: Changes about which the user is still to be called.
        self.changes: deque[Change] = deque()
        #: Their queues are still to be committed and stopped. Any thread may read it.
        self.revoked_readers: set[QueueReader] = set()
        #: The poll that waits, and queues that it does not want.
        self._waiter: asyncio.Future[None] | None = None
        self._but: Collection[MessageQueue] = ()
        #: Maximum number of messages that the latest poll has asked for.
        self._most = 1
        self._is_woken = False
        # Errors for the user. Every poll raises the first two; `_failures`, and the errors of readers, are raised once.
        self._has_halted = False
        self.rejection: MinimqError | None = None
        self._failures: deque[MinimqError] = deque()
        self._failed_readers: deque[QueueReader] = deque()

    # ---- for the polling thread -------------------------------------------------------------------

    def raise_error(self) -> None:
        """Raise the next error for the user, if any."""
        if self._has_halted:
            raise Closed("the consumer is closed")
        if self.rejection is not None:
            raise self.rejection.with_traceback(None)  # the traceback would grow with each raise
        if self._failures:
            raise self._failures.popleft()
        while self._failed_readers:
            if (error := self._failed_readers.popleft().take_error()) is not None:
                raise error

    def raise_too_many_streams(self) -> None:
        """Raise `TooManyStreams` if a queue cannot be read because of it."""
        for reader in [*self._readers.values()]:
            if isinstance(reader.failure, TooManyStreams):
                raise reader.failure.with_traceback(None)

    def next_ready(self, but: Collection[MessageQueue] = ()) -> ReadyBatches | None:
        """Move the next hand-over that may be delivered to the front, and return it."""
        now = time.monotonic()
        with suppress(IndexError):  # the consumer was closed
            for _ in range(len(self.ready)):
                handed = self.ready[0]
                reader = self._readers.get(handed.queue)
                if reader is None or not reader.is_current(handed):
                    self.ready.popleft()
                    self.used_up.append(handed.queue)
                elif handed.queue not in but and reader.may_go_on(now):
                    return handed
                else:
                    self.ready.rotate(-1)
        return None

    def finish(self, handed: ReadyBatches) -> None:
        """Count the messages of a hand-over that the user has as finished."""
        handed.finish()
        if handed.is_over:
            self.used_up.append(handed.queue)

    def end_turn(self) -> None:
        """Record that messages of the first hand-over are taken: the next ones come from another queue, if any."""
        self.ready.rotate(-1)

    def may_use(self, queue: MessageQueue) -> bool:
        """Return whether delivered messages of a queue may be processed: its lease still holds. On any thread."""
        reader = self._readers.get(queue)
        return reader is not None and reader.is_trusted(time.monotonic())

    def damaged(self, handed: ReadyBatches, error: MinimqError) -> None:
        """Stop a queue before a hand-over that cannot be decoded. On any thread."""
        self._connection.call_soon(self._damaged, handed, error)

    def wake(self) -> None:
        """Wake the current wait for messages, or the next one. On any thread."""
        self._is_woken = True
        if self._waiter is not None:
            self._connection.call_soon(self._changed)

    @property
    def passed_over(self) -> int:
        """Number of messages that brokers filtered out by their tags."""
        return self._passed_over + sum(reader.passed_over for reader in [*self._readers.values()])

    # ---- waiting for messages ---------------------------------------------------------------------

    def wait(self, most: int, but: Collection[MessageQueue], timeout_s: float) -> asyncio.Future[None]:
        """Wait for messages, for anything else that needs the polling thread, or for the timeout.

        Replaces an earlier wait, whose poll was interrupted.
        """
        loop = asyncio.get_running_loop()
        self._end_wait()
        self._most, self._but = most, but
        while self.used_up:
            if (reader := self._readers.get(self.used_up.popleft())) is not None:
                now = time.monotonic()
                if not self._offer(reader, now):
                    self._pulls.carry_out(reader, reader.tick(now))
        future = self._waiter = loop.create_future()
        self._changed()
        if not future.done():
            if timeout_s > 0:
                timer = loop.call_later(timeout_s, set_outcome, future, None)
                future.add_done_callback(lambda _: timer.cancel())
            else:
                self._end_wait()
        return future

    def _end_wait(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            set_outcome(waiter, None)

    def _changed(self) -> None:
        if self._waiter is None:
            return
        if self.needs_attention or self.revoked_readers or self._is_woken or self._has_any(self._but):
            self._is_woken = False
            self._end_wait()

    @property
    def needs_attention(self) -> bool:
        """True if there is an error, a callback or a revocation to deal with before further messages are taken."""
        return bool(self._has_halted or self.rejection or self._failures or self._failed_readers or self.changes)

    def _has_any(self, but: Collection[MessageQueue]) -> bool:
        now = time.monotonic()
        for handed in [*self.ready]:
            reader = self._readers.get(handed.queue)
            if reader is not None and handed.queue not in but and reader.is_current(handed) and reader.may_go_on(now):
                return True
        return False

    def _offer(self, reader: QueueReader, now: float) -> bool:
        """Hand over the next batches of a queue, and fetch further ones; return whether there were any."""
        if not reader.may_hand_over(now):
            return False
        self.ready.append(reader.hand_over(self._most))
        self._pulls.carry_out(reader, reader.tick(now))
        return True

    def _damaged(self, handed: ReadyBatches, error: MinimqError) -> None:
        reader = self._readers.get(handed.queue)
        if reader is not None and reader.is_current(handed):
            self._carry_out(reader, reader.damaged(handed, error))

    # ---- assignment -----------------------------------------------------------------------------

    def expect(self, count: int) -> None:
        """Leave memory for this number of queues, which are about to be read."""
        self._expected = count

    def start(self, queue: MessageQueue, grant: Grant, *, tell: bool = True) -> None:
        """Start or restart reading a queue at the offset of a grant, under its lease if it has an epoch.

        `on_assigned` runs before the first message is delivered, unless `tell` is false.
        """
        self._stop(queue, tell=tell)
        self.commits.begins(queue)
        reader = self._readers[queue] = QueueReader(queue, grant, self._options)
        if tell:
            self.changes.append((QueueEvent.GAINED, queue))
        self._carry_out(reader, reader.tick(time.monotonic()))

    def stop(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Stop reading queues and drop their buffers. Returns the epochs of those that were read."""
        stopped = [reader for queue in queues if (reader := self._stop(queue, tell=False))]
        self._changed()
        return {reader.queue: reader.lease.epoch for reader in stopped}

    def granted(self, queue: MessageQueue, grant: Grant) -> None:
        """Start reading a queue of the group, or continue if its lease was only renewed."""
        reader = self._readers.get(queue)
        if reader is not None and (decisions := reader.renewed(grant, time.monotonic())) is not None:
            self.revoked_readers.discard(reader)
            self._carry_out(reader, decisions)
            return
        self._lose([queue])
        self.on_begin(queue, grant)
        self.start(queue, grant)

    def revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Stop the delivery of revoked queues; their owner then commits and stops them."""
        for queue in queues:
            reader = self._readers.get(queue)
            if reader is not None:
                self.revoked_readers.add(reader)
                self._carry_out(reader, reader.leave())

    def lost(self, queues: Sequence[MessageQueue], *, deleted: bool = False) -> None:
        """Stop reading lost or deleted queues; the polling thread then calls `on_lost`."""
        self.on_lost(queues)
        if deleted:
            self.commits.deleted(queues)
        self._lose(queues)

    def _lose(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._stop(queue, tell=True)
        self._changed()

    def _stop(self, queue: MessageQueue, *, tell: bool) -> QueueReader | None:
        reader = self._readers.pop(queue, None)
        if reader is None:
            return None
        self.revoked_readers.discard(reader)
        self._carry_out(reader, reader.cancel())
        self._passed_over += reader.passed_over
        self.commits.leaves(reader)
        if tell:
            self.changes.append((QueueEvent.LOST, queue))
        return reader

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read, sorted. On any thread."""
        return sorted([*self._readers])

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read, without those of topics known to be deleted; sorted. On any thread."""
        return sorted(reader.queue for reader in [*self._readers.values()] if not reader.is_deleted)

    def leaving(self) -> dict[MessageQueue, int]:
        """Return the positions of revoked queues, which are still to be committed and stopped. On any thread."""
        return {reader.queue: reader.position for reader in [*self.revoked_readers]}

    def pause(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        """Stop or resume the delivery of some queues. Raises `InvalidArgument` if one is not read."""
        for reader in [self.assigned(queue) for queue in queues]:  # all or none
            reader.pause(paused=paused)
            self._offer(reader, time.monotonic())
        self._changed()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset. Raises `InvalidArgument` if the queue is not read."""
        reader = self.assigned(queue)
        self._carry_out(reader, reader.seek(offset, time.monotonic()))

    def go_back(self, queue: MessageQueue, offset: int) -> None:
        """Redeliver from an offset on; see `QueueReader.go_back`."""
        reader = self.assigned(queue)
        self._carry_out(reader, reader.go_back(offset, time.monotonic()))

    def reader(self, queue: MessageQueue) -> QueueReader | None:
        return self._readers.get(queue)

    def assigned(self, queue: MessageQueue) -> QueueReader:
        """Return the reader of a queue. Raises `InvalidArgument` if the queue is not read. On any thread."""
        if (reader := self._readers.get(queue)) is None:
            raise InvalidArgument(f"queue {queue} is not assigned to this consumer")
        return reader

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset of the next message of each queue. On any thread."""
        return {reader.queue: reader.next_offset for reader in [*self._readers.values()]}

    def at_end(self) -> bool:
        """Return whether the user has every message that was stored at the latest answers. On any thread."""
        return all(reader.at_end for reader in [*self._readers.values()])

    # ---- errors ---------------------------------------------------------------------------------

    def failed(self, error: MinimqError) -> None:
        """Make the next poll raise an error."""
        self._failures.append(error)
        self._changed()

    def rejected(self, error: MinimqError | None) -> None:
        """Make every poll raise an error from now on; None ends that."""
        self.rejection = error
        self._changed()

    def halt(self) -> None:
        """Stop delivery: the waiting poll and all later ones raise `Closed`. On any thread."""
        self._has_halted = True
        if self._waiter is not None:
            self._connection.call_soon(self._changed)

    # ---- fetching -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Retry failed pulls, and restart those that must go to another server now. Call it a few times a second."""
        now = time.monotonic()
        for reader in [*self._readers.values()]:
            self._pulls.tick(reader, now)
            self._offer(reader, now)  # leases are renewed
        self._changed()

    def close(self) -> None:
        """Close all streams. Idempotent; on any thread."""
        self._has_halted = True
        if self._readers or self._waiter is not None or self._pulls.streams:
            self._connection.call_soon(self._close)

    def _close(self) -> None:
        self._pulls.close()
        self._passed_over += sum(reader.passed_over for reader in self._readers.values())
        self._readers.clear()
        self.ready.clear()
        self.revoked_readers.clear()
        self._changed()

    def _carry_out(self, reader: QueueReader, decisions: Sequence[Decision]) -> None:
        self._pulls.carry_out(reader, decisions)
        self._heard(reader)

    def _heard(self, reader: QueueReader) -> None:
        if self._readers.get(reader.queue) is not reader:
            return
        if reader.has_unreported_error and reader not in self._failed_readers:
            self._failed_readers.append(reader)
        self._offer(reader, time.monotonic())
        self._changed()

    def _decided(self, reader: QueueReader, decision: LeaseOver | OffsetReset) -> None:
        if isinstance(decision, LeaseOver):
            log.info("consumer: lost queue=%s reason=%s", reader.queue, decision.error)
            self._lease_over(reader.queue, decision.epoch, decision.error)
        else:
            log.warning("consumer: group=%s %s", self._group, decision)
            self.missed_messages += decision.missed
            self.changes.append(decision)
