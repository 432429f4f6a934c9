"""One queue that a consumer reads: what was fetched ahead of it, and how far the reader is."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

from minimq.receiving.offset_reset import OffsetReset
from minimq.receiving.pull_stream import PullStream
from minimq.receiving.received import ReceivedBatch, ReceivedMessage, StoredBatch
from minimq_common.errors import CorruptBatch, InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2


class Fetcher:
    """The read-ahead of one queue. All of it is guarded by the lock of its `ConsumerCore`.

    Attributes:
        queue: what is read.
        epoch: of the lease under which it is read; 0 without a lease.
        leased_by: address of the broker that has granted the lease; empty without one.
        topic_id: as the lease has it; 0 without a lease.
        position: offset of the message that the reader gets next.
        term: the latest one in the log in which that is known to be right: brokers tell what a later one took back. 0
            when none is known, until a broker was heard.
        term_taken: that of the log in which the latest message that was handed out is; before one was, that in which
            the queue was begun, 0 when it is not known.
        to_check: the next pull is made though enough is buffered, since another broker may have other messages.
        pull: the pull that is under way, None when there is none.
        pulled_at: address of the broker of the latest pull.
        slave: broker id of a slave that is read instead, as the master has advised, since this reader is far behind; 0
            when there is none.
        no_advice_until: on the monotonic clock, as such a slave has failed.
        error: why no more is fetched, until a seek.
        error_told: whether the reader knows of it, or need not.
        retry_at: when to pull again after a failed pull, on the monotonic clock.
        leaving: another member was given the queue; nothing more is handed out.
        paused: nothing is handed out until `resume`.
        committed: the offset that was recorded last, None when it is not known.
        committed_at: when that was, on the monotonic clock.
        sought: the reader has moved; the next commit may go back.
        unsaved: messages were handed out, up to `position`, since an offset was recorded.
        sure_until: when the lease is in doubt, on the monotonic clock: after it nothing is handed out.
        delay_ms: how long messages wait after they were stored before they are handed out; by the clock of the broker,
            and never longer than that after they have come here, whatever clocks say.
        announced: whether the user was told that the queue is this consumer's.
        needs_texts: keys or properties decide which messages are wanted, so they are checked when a batch is opened.
        generation: grows with each seek, so that frames of an earlier pull are told apart.
        moves: grows when the reader goes on elsewhere than behind what it was handed.
        passed_over: messages before `position` that the broker has not sent, since their tags are not wanted.
    """

    def __init__(self, queue: MessageQueue, offset: int, epoch: int, topic_id: int) -> None:
        self.queue = queue
        self.epoch = epoch
        self.leased_by = ""
        self.topic_id = topic_id
        self.position = offset
        self.term = 0
        self.term_taken = 0
        self.to_check = False
        self.pull: tuple[PullStream, int] | None = None
        self.pulled_at = ""
        self.slave = 0
        self.no_advice_until = 0.0
        self.error: MiniMQError | None = None
        self.error_told = True
        self.retry_at = 0.0
        self.leaving = False
        self.paused = False
        self.committed: int | None = None
        self.committed_at = 0.0
        self.sought = False
        self.unsaved = False
        self.sure_until = math.inf
        self.delay_ms = 0
        self.announced = False
        self.needs_texts = False
        self.generation = 0
        self.moves = 0
        #: The queue's end as last heard of, None before the first frame.
        self.end_offset: int | None = None
        self._fetch_offset = offset
        self.passed_over = 0
        #: Messages that the broker has passed over behind the last batch.
        self._gap = 0
        #: Each with the time from which on it may be handed out, on the monotonic clock, and how many messages the
        #: broker has passed over before it.
        self._batches: deque[tuple[StoredBatch, float, int]] = deque()
        self._opened: list[ReceivedMessage] = []
        self._handed_out = 0  # of the opened messages
        self._buffered_bytes = 0
        self._buffered_messages = 0

    @property
    def has_messages(self) -> bool:
        """Whether something can be handed out."""
        more = self._handed_out < len(self._opened) or (bool(self._batches) and self._is_due())
        return more and not (self.leaving or self.paused or self.error)

    def _is_due(self) -> bool:
        return not self.delay_ms or self._batches[0][1] <= time.monotonic()

    def room(self, max_messages: int, max_bytes: int) -> tuple[int, int]:
        """Return how many messages and bytes the next pull may bring; (0, 0) while more than half is full."""
        if self.to_check:
            return max(max_messages - self._buffered_messages, 1), max(max_bytes - self._buffered_bytes, 1)
        if 2 * self._buffered_bytes > max_bytes or 2 * self._buffered_messages > max_messages:
            return 0, 0
        return max_messages - self._buffered_messages, max_bytes - self._buffered_bytes

    def request(self, max_messages: int, max_bytes: int, wait_s: float) -> broker_pb2.PullRequest:
        """Return the next pull."""
        return broker_pb2.PullRequest(
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            offset=self._fetch_offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            term=self.term,
            # The first one tells where the queue ends, also when there is nothing to read; and at the end of a slave
            # that was advised its master goes on.
            wait_ms=0 if self.end_offset is None or self.slave else round(wait_s * 1000),
        )

    def add(self, frame: broker_pb2.PullFrame) -> None:
        """Take a frame in."""
        now = time.monotonic()
        for stored in map(StoredBatch.from_wire, frame.batches):
            if stored.base_offset + stored.count <= self._fetch_offset:
                continue  # a broker that sends it again is wrong: there is nothing new in it
            left_ms = min(stored.stored_ms + self.delay_ms - frame.now_ms, self.delay_ms)
            self._gap += max(stored.base_offset - self._fetch_offset, 0)
            self._batches.append((stored, now + left_ms / 1000, self._gap))
            self._gap = 0
            self._buffered_bytes += len(stored.data)
            self._buffered_messages += stored.count
            self._fetch_offset = stored.base_offset + stored.count
        self._gap += max(frame.next_offset - self._fetch_offset, 0)
        self._fetch_offset = max(self._fetch_offset, frame.next_offset)
        self.end_offset = frame.max_offset
        self.term = frame.term
        self.to_check = False
        self._pass_over()

    def take(self, max_messages: int) -> list[ReceivedMessage]:
        """Hand messages out: what was sent one by one comes in many batches.

        Raises:
            CorruptBatch, InvalidArgument: the next batch is damaged, or of a newer format. The fetcher stays in front
                of it until a seek.
        """
        taken: list[ReceivedMessage] = []
        while len(taken) < max_messages and self.has_messages:
            if self._handed_out == len(self._opened):
                try:
                    self._open()
                except (CorruptBatch, InvalidArgument) as error:
                    if taken:
                        break  # those ahead of it come first
                    self.error = error
                    raise
            more = self._opened[self._handed_out : self._handed_out + max_messages - len(taken)]
            self._handed_out += len(more)
            taken += more
        self.position = taken[-1].queue_offset + 1
        self.term_taken = self.term
        self._pass_over()
        return taken

    def give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Hand the last messages that `take` has returned out again; only while the reader was not moved since."""
        self._opened = [*messages, *self._opened[self._handed_out :]]
        self._handed_out = 0
        self.position = messages[0].queue_offset

    def _open(self) -> None:
        stored, _, passed_over = self._batches[0]
        batch = ReceivedBatch(self.queue, stored)
        if self.needs_texts:
            batch.check_texts()
        begin = self._opened[-1].queue_offset + 1 if self._opened else 0  # of what this call has handed out before
        self._opened = batch.messages(max(self.position, begin))
        self._handed_out = 0
        self._batches.popleft()
        self._buffered_bytes -= len(stored.data)
        self._buffered_messages -= stored.count
        self.passed_over += passed_over

    def _pass_over(self) -> None:
        """Go on behind what the broker has passed over, when all before it has been handed out."""
        if not self._batches and self._handed_out == len(self._opened):
            self.position = max(self.position, self._fetch_offset)
            self.passed_over += self._gap
            self._gap = 0

    def reset(self, first: int, end: int, rule: str) -> OffsetReset | None:
        """Go on elsewhere, since what was to be fetched next is not stored. Returns None when nothing is missed.

        What was deleted is passed over, when all before it has been handed out. Beyond the end there will be other
        messages, so what was fetched is forgotten; the next commit may then go back.

        Args:
            first: first offset that is stored.
            end: where the queue ends.
            rule: where to go on when messages were deleted, "earliest" or "latest".
        """
        if self._fetch_offset <= end:
            wanted, self._fetch_offset = self._fetch_offset, end if rule == "latest" else first
            self._pass_over()
        else:
            wanted = self.position
            self._go_to(min(wanted, end))
            if self.position == wanted:
                return None
            self.sought = True
        return OffsetReset(self.queue, wanted, self._fetch_offset, first, end)

    def seek(self, offset: int) -> None:
        """Go on at another offset, and forget what was fetched."""
        self._go_to(offset)
        self.term = self.term_taken = 0

    def _go_to(self, offset: int) -> None:
        self.position = self._fetch_offset = offset
        self._batches.clear()
        self._opened = []
        self._handed_out = 0
        self._buffered_bytes = self._buffered_messages = self._gap = 0
        self.error = None
        self.retry_at = 0.0
        self.end_offset = None
        self.generation += 1
        self.moves += 1
