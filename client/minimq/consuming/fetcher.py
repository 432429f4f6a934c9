"""Fetches the queues of one consumer and hands their batches to the thread that polls.

Everything lives on the event loop of the connection, except the methods for the polling thread. These only read, and
count in the `ReadyBatches` the messages that the user has. So an interrupted poll has changed nothing: its hand-over
stays in place for the next poll.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from minimq.connection.client import ClusterClient
from minimq.connection.replica_selector import ReplicaSelector
from minimq.consuming.commits import BrokerOffsets, Commits
from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.member_state import Grant
from minimq.consuming.pulls import Pulls
from minimq.consuming.queue_decisions import Decision, FetchOptions, LeaseOver, OffsetReset
from minimq.consuming.queue_events import QueueEvents
from minimq.consuming.queue_reader import QueueReader
from minimq.consuming.read_ahead import ReadyBatches
from minimq_common.errors import Closed, InvalidArgument, MinimqError
from minimq_common.model import MessageQueue
from minimq_common.wire.channels import TooManyStreams

log = logging.getLogger(__name__)

#: Prefetched messages of one consumer: bounds the objects of tiny messages, which `prefetch_bytes` hardly counts.
PREFETCH_MESSAGES = 100_000

if TYPE_CHECKING:  # circular: it imports this module
    from minimq.consuming.consumer import Consumer


class _Wish(NamedTuple):
    """A waiting poll: it wants up to `most` messages of any queue not in `but`."""

    most: int
    but: Collection[MessageQueue]
    over: asyncio.Future[None]


class Fetcher:
    """Owns the queue readers of one consumer and provides their messages to polls."""

    def __init__(
        self,
        client: ClusterClient,
        places: ReplicaSelector,
        group: str,
        client_id: str,
        options: ConsumerOptions,
        owner: Consumer,
    ) -> None:
        self._connection = client.connection
        self._group = group
        self._owner = owner
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._expected = 0
        self._options = FetchOptions(
            PREFETCH_MESSAGES,
            options.prefetch_bytes,
            offset_reset=options.offset_reset,
            readers=lambda: max(len(self._readers), self._expected, 1),
        )
        self._passed_over = 0  # by readers that have ended
        self._pulls = Pulls(self._heard, places, client, self._tag_hashes, self._decided, group, client_id)
        store = BrokerOffsets(
            client.connection.brokers,
            lambda queue: places.of(queue).address,
            group,
            client_id,
            options.request_timeout_s,
        )
        self.commits = Commits(self._readers, store)
        self.events = QueueEvents(self._readers)
        #: The only place where the polling thread finds messages: one hand-over per queue, in the order of their turns.
        #: Only the loop appends and removes; the polling thread rotates.
        self._turns: deque[ReadyBatches] = deque()
        #: The queues with messages that are still to be handed over, in the order of their arrival.
        self.due: dict[MessageQueue, None] = {}
        #: From where the user got messages last. Belongs to the polling thread.
        self._handed: ReadyBatches | None = None
        self._wish: _Wish | None = None
        self._is_woken = False
        # Errors for the user. Every poll raises the first two; `_failures`, and the errors of readers, are raised once.
        self._has_halted = False
        self.rejection: MinimqError | None = None
        self._failures: deque[MinimqError] = deque()
        self._failed_readers: deque[QueueReader] = deque()
        self._leaving: set[QueueReader] = set()

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

    def has_due(self, but: Collection[MessageQueue]) -> bool:
        """Return whether queues wait for `wait` to give them their turn."""
        return any(queue not in but for queue in [*self.due])

    def at_hand(self, but: Collection[MessageQueue] = ()) -> ReadyBatches | None:
        """Return the hand-over from which messages may be delivered without waiting, if any."""
        before = self._handed
        if before is not None and before.given == before.count and not before.in_flight:
            before.free()
            self._handed = None
        if self._needs_attention:
            return None
        handed, is_current = self._next_turn(but)
        return handed if is_current else None

    def end_turn(self, handed: ReadyBatches) -> None:
        """Record that messages of a hand-over are taken: the next ones come from another queue, if there are any."""
        self._handed = handed
        self._turns.rotate(-1)

    def finish(self) -> None:
        if self._handed is not None:
            self._handed.in_flight = False

    def _next_turn(self, but: Collection[MessageQueue]) -> tuple[ReadyBatches | None, bool]:
        """Move the first hand-over to the front that may be delivered, or is over; return it, and whether it may."""
        now = time.monotonic()
        with suppress(IndexError):  # the loop has just removed the last one
            for _ in range(len(self._turns)):
                handed = self._turns[0]
                reader = self._readers.get(handed.queue)
                if reader is None or not reader.is_current(handed):
                    return handed, False
                if handed.queue not in but and reader.may_go_on(now):
                    return handed, True
                self._turns.rotate(-1)
        return None, False

    def may_use(self, queue: MessageQueue) -> bool:
        """Return whether delivered messages of a queue may be processed: its lease still holds. On any thread."""
        reader = self._readers.get(queue)
        return reader is not None and reader.is_trusted(time.monotonic())

    def wake(self) -> None:
        """Wake the current wait for messages, or the next one. On any thread."""
        self._is_woken = True
        if self._wish is not None:
            self._connection.call_soon(self._changed)

    @property
    def _needs_attention(self) -> bool:
        return bool(
            self._has_halted or self.rejection or self._failures or self._failed_readers or self.events.are_there
        )

    @property
    def passed_over(self) -> int:
        """Number of messages that brokers filtered out by their tags."""
        return self._passed_over + sum(reader.passed_over for reader in [*self._readers.values()])

    # ---- waiting for messages ---------------------------------------------------------------------

    async def wait(self, most: int, but: Collection[MessageQueue], timeout_s: float) -> None:
        """Wait for messages, for anything else that needs the polling thread, or for the timeout."""
        if self._wish is not None:  # its poll was interrupted
            self._end_wish(self._wish)
        loop = asyncio.get_running_loop()
        wish = self._wish = _Wish(most, but, loop.create_future())
        self._changed()
        timer = loop.call_later(timeout_s, self._end_wish, wish) if timeout_s > 0 else None
        try:
            if timer is not None:
                await wish.over
        finally:
            self._end_wish(wish)
            if timer is not None:
                timer.cancel()

    def damaged(self, handed: ReadyBatches, error: MinimqError) -> None:
        reader = self._readers.get(handed.queue)
        if reader is not None and reader.is_current(handed):
            reader.damaged(handed, error)

    def has_any(self, queues: Iterable[MessageQueue]) -> bool:
        now = time.monotonic()
        readers = [reader for queue in queues if (reader := self._readers.get(queue)) is not None]
        return any(
            reader.may_hand_over(now) or (reader.open_hand_over is not None and reader.may_go_on(now))
            for reader in readers
        )

    def _changed(self) -> None:
        wish = self._wish
        if wish is not None and (self._needs_attention or self._fill(wish) or self._is_woken or self._leaving):
            self._is_woken = False
            self._end_wish(wish)

    def _end_wish(self, wish: _Wish) -> None:
        if self._wish is wish:
            self._wish = None
        if not wish.over.done():
            wish.over.set_result(None)

    def _fill(self, wish: _Wish) -> bool:
        for queue in [queue for queue in self.due if queue not in wish.but]:
            del self.due[queue]
            self._hand_over(queue, wish)
        while True:
            handed, is_current = self._next_turn(wish.but)
            if handed is None or is_current:
                return is_current
            self._turns.remove(handed)  # a polling thread whose wait was interrupted may rotate at the same time
            if (reader := self._readers.get(handed.queue)) is not None:
                reader.put_back(handed)  # damaged batches, if any
                self._hand_over(handed.queue, wish)

    def _hand_over(self, queue: MessageQueue, wish: _Wish) -> None:
        reader, now = self._readers.get(queue), time.monotonic()
        if reader is None:
            return
        if reader.may_hand_over(now):
            self._turns.append(reader.hand_over(wish.most))
        self._pulls.carry_out(reader, reader.tick(now))

    def _note_due(self, reader: QueueReader) -> None:
        if reader.queue not in self.due and reader.may_hand_over(time.monotonic()):
            self.due[reader.queue] = None

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
            self.events.gained(queue)
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
            self._leaving.discard(reader)
            self._carry_out(reader, decisions)
            return
        self._lose([queue])
        self._owner.begins(queue, grant)
        self.start(queue, grant)

    def revoked(self, queues: Iterable[MessageQueue]) -> None:
        """Stop the delivery of revoked queues; their owner then commits and stops them."""
        for queue in queues:
            reader = self._readers.get(queue)
            if reader is not None:
                self._leaving.add(reader)
                self._carry_out(reader, reader.leave())

    def lost(self, queues: Sequence[MessageQueue], *, deleted: bool = False) -> None:
        """Stop reading lost or deleted queues; the polling thread then calls `on_lost`."""
        self._owner.lost(queues)
        if deleted:
            self.commits.deleted(queues)
        self._lose(queues)

    def _lose(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._stop(queue, tell=True)
        self._changed()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read, sorted. On any thread."""
        return sorted([*self._readers])

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read, without those of topics known to be deleted; sorted. On any thread."""
        return sorted(reader.queue for reader in [*self._readers.values()] if not reader.is_deleted)

    @property
    def has_leaving(self) -> bool:
        """True if revoked queues are still to be committed and stopped. On any thread."""
        return bool(self._leaving)

    def leaving(self) -> dict[MessageQueue, int]:
        return {reader.queue: reader.position for reader in self._leaving}

    def pause(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        """Stop or resume the delivery of some queues. Raises `InvalidArgument` if one is not read."""
        for reader in [self.assigned(queue) for queue in queues]:  # all or none
            reader.pause(paused=paused)
            self._note_due(reader)
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
        if self._wish is not None:
            self._connection.call_soon(self._changed)

    # ---- fetching -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Retry failed pulls, and restart those that must go to another server now. Call it a few times a second."""
        now = time.monotonic()
        for reader in [*self._readers.values()]:
            self._pulls.tick(reader, now)
            self._note_due(reader)  # delays are over, leases are renewed
        self._changed()

    def close(self) -> None:
        """Close all streams. Idempotent; on any thread."""
        self._has_halted = True
        if self._readers or self._wish is not None or self._pulls.streams:
            self._connection.call_soon(self._close)

    def _close(self) -> None:
        self._pulls.close()
        self._passed_over += sum(reader.passed_over for reader in self._readers.values())
        self._readers.clear()
        self._turns.clear()
        self._leaving.clear()
        self._changed()

    def _tag_hashes(self, topic: str) -> Sequence[int]:
        wanted = self._owner.filters.get(topic)
        return () if wanted is None else wanted.tag_hashes

    def _carry_out(self, reader: QueueReader, decisions: Sequence[Decision]) -> None:
        self._pulls.carry_out(reader, decisions)
        self._heard(reader)

    def _heard(self, reader: QueueReader) -> None:
        if reader.has_unreported_error and reader not in self._failed_readers:
            self._failed_readers.append(reader)
        self._note_due(reader)
        self._changed()

    def _decided(self, reader: QueueReader, decision: LeaseOver | OffsetReset) -> None:
        if isinstance(decision, LeaseOver):
            log.info("consumer: lost queue=%s reason=%s", reader.queue, decision.error)
            self._owner.lease_over(reader.queue, decision.epoch, decision.error)
        else:
            log.warning("consumer: group=%s %s", self._group, decision)
            self.events.reset(reader, decision)

    def _stop(self, queue: MessageQueue, *, tell: bool) -> QueueReader | None:
        reader = self._readers.pop(queue, None)
        if reader is None:
            return None
        self._leaving.discard(reader)
        self._carry_out(reader, reader.cancel())
        self._passed_over += reader.passed_over
        self.commits.leaves(reader)
        self.events.lost(queue, tell=tell)
        return reader
