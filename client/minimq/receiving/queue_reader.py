"""The reader of one queue: pure.

It is the only owner of the position, the term, the buffer and the lease. Its driver reports events and carries out the
decisions that it returns, in their order. Groups, broadcasting and range reads use it. Times are seconds on any clock
that does not go back.

A queue is fetched by one pull after the other. Each has a number; what an earlier one still brings is dropped.

A reader far behind its master is advised to read a slave. It goes back to the master at the end of what the slave has,
and when the slave fails.

A reader of a range takes no messages of another log: the next master of an asynchronous one may have others at the same
offsets. A frame of a later term is dropped, and a pull at the end of the range asks whether that term has cut it.
"""

from __future__ import annotations

import math

from minimq.connection.retry_schedule import longer
from minimq.receiving.member_state import Grant
from minimq.receiving.queue_decisions import (
    Cancel,
    Commit,
    CommitState,
    Decision,
    FetchOptions,
    Frame,
    LeaseOver,
    OffsetReset,
    Pull,
    ReaderState,
)
from minimq.receiving.read_ahead import HandOver, ReadAhead
from minimq.receiving.received import EncodedBatch
from minimq_common.errors import Fenced, MiniMQError, OffsetOutOfRange, QueueNotFound, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue, TopicId, granter

#: For so long no advice of a master is taken after a slave that it had advised has failed, in seconds.
_SLAVE_BACKOFF_S = 10.0
_IDLE, _PULLING, _WAITING, _, _LEAVING = ReaderState


class QueueReader:
    """The reading of one queue. Used on the event loop of the connection."""

    def __init__(
        self,
        queue: MessageQueue,
        lease: Grant,
        options: FetchOptions,
        *,
        end: int | None = None,
        topic_id: TopicId | None = None,
        delay_ms: int = 0,
        check_texts: bool = False,
    ) -> None:
        self.queue = queue
        self.lease = lease
        self.topic_id = topic_id
        self.state: ReaderState = _IDLE
        #: Why nothing is fetched any more, until a seek or another lease.
        self.error: MiniMQError | None = None
        #: Why the latest pull failed that is tried again.
        self.failure: MiniMQError | None = None
        #: Broker id of the slave that is read, 0 for none.
        self.slave = 0
        #: Grows when the reader goes on elsewhere than behind what it handed out.
        self.moves = 0
        #: Of the log of the latest message handed out, or in which the reading began; 0 if it is not known.
        self.term_taken = lease.term
        #: The messages of the range are not those any more that were there in its term.
        self.taken_back = False
        self._options = options
        self._end = end
        self._ahead = ReadAhead(queue, lease.offset, delay_ms, check_texts=check_texts)
        #: The latest hand-over, and how many of its messages are known to be the user's.
        self._handed: HandOver | None = None
        self._noted = 0
        #: In which `fetch_offset` is known to be right.
        self._term = lease.term
        self._queue_end: int | None = None
        self._is_error_reported = True  # the error
        self._is_paused = False
        # Pulls.
        self._number = 0
        #: The next pull is made though enough is here: another broker, or another term, may have other messages.
        self._must_verify = False
        self._retry_at = 0.0
        self._pause_s = 0.0
        self._no_advice_until = 0.0
        self._commits = CommitState(options.recommit_s, lease.offset)
        #: A seek led to `position`, and nothing was heard of the queue since.
        self._is_fresh_seek = False

    # ---- what is known --------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Offset behind what the user has finished."""
        handed = self._unfinished()
        return self._ahead.position if handed is None else handed.position

    @property
    def next_offset(self) -> int:
        """Offset of the message that the user gets next."""
        handed = self._unfinished()
        return self._ahead.position if handed is None else handed.next_offset

    def _unfinished(self) -> HandOver | None:
        handed = self._handed
        if handed is None or handed.moves != self.moves or (handed.is_over and not handed.is_cut):
            return None
        return handed

    @property
    def passed_over(self) -> int:
        """Number of messages before the position that the broker has not sent, since their tags are not wanted."""
        return self._ahead.passed_over

    @property
    def at_end(self) -> bool:
        """True if all was handed out that was stored when the broker was last heard of."""
        return self._queue_end is not None and self.next_offset >= self._queue_end

    def is_pulling(self, number: int) -> bool:
        """Tell whether a pull is the one under way; what any other brings is dropped."""
        return self.state is _PULLING and number == self._number

    @property
    def wake_at(self) -> float:
        """When `tick` begins the next pull after a failure; infinite when none is to begin."""
        return self._retry_at if self.state is _WAITING else math.inf

    def is_current(self, handed: HandOver) -> bool:
        """Tell whether a hand-over is the latest one, not used up, and nothing has moved the reader since."""
        return handed is self._handed and handed.moves == self.moves and not handed.is_over

    def is_trusted(self, now: float) -> bool:
        """Tell whether the lease holds, if there is one."""
        return not self.lease.epoch or now < self.lease.trust.until

    def may_go_on(self, now: float) -> bool:
        """Tell whether the user may get messages, under the lease."""
        is_held_back = self._is_paused or self.error is not None or self.state is _LEAVING
        return not is_held_back and self.is_trusted(now)

    def may_hand_over(self, now: float) -> bool:
        """Tell whether `hand_over` has something, and may hand it over."""
        return self._ahead.is_due(now) and self.may_go_on(now)

    @property
    def has_unreported_error(self) -> bool:
        """True if there is an error that the user does not know yet."""
        return self.error is not None and not self._is_error_reported

    def take_error(self) -> MiniMQError | None:
        """Return an error that the user does not know yet; once."""
        announced, self._is_error_reported = self._is_error_reported, True
        return None if announced else self.error

    # ---- what the driver, the user and the member want -------------------------------------------

    def should_pull(self, now: float) -> bool:
        """Tell whether `tick` begins the next pull."""
        is_free = self.state is _IDLE or (self.state is _WAITING and now >= self._retry_at)
        return is_free and self._room()[0] > 0

    def tick(self, now: float) -> list[Decision]:
        """Begin the next pull if it is time, and there is room."""
        if not self.should_pull(now):
            return []
        max_messages, max_bytes = self._room()
        self._number += 1
        self.state = self.state.after("begin")
        if self._end is not None:
            if self._must_verify:
                return [Pull(self._number, self._end, 1, 1, term=self._term)]
            return [Pull(self._number, self._ahead.fetch_offset, max_messages, max_bytes)]
        # The first one tells where the queue ends, also when there is nothing to read; and at the end of a slave that
        # was advised its master goes on. A slave knows no lease of its master; that it holds this consumer sees.
        wait_s = 0.0 if self._queue_end is None or self.slave else self._options.wait_s
        epoch = 0 if self.slave else self.lease.epoch
        offset = self._ahead.fetch_offset
        return [Pull(self._number, offset, max_messages, max_bytes, wait_s, self._term, epoch, self.slave)]

    def seek(self, offset: int, now: float) -> list[Decision]:
        """Go on at another offset; the next commit may then go back."""
        self.term_taken = 0
        decisions = self.go_back(offset, now)
        self._commits.is_sought = self._is_fresh_seek = True
        return decisions

    def go_back(self, position: int, now: float) -> list[Decision]:
        """Hand out again what was handed out from an offset on; to the group that is no seek."""
        cancelled = self.cancel()
        self._go_to(position)
        self._term = self.term_taken
        return [*cancelled, *self.tick(now)]

    def pause(self, *, paused: bool) -> None:
        """Hand nothing out, or again."""
        self._is_paused = paused

    def renewed(self, lease: Grant, now: float) -> list[Decision] | None:
        """Go on under a lease that was granted anew, where the reader is: nothing is handed out twice.

        Returns None if it cannot: it is of another topic; or it is another lease and its group is further, or its
        broker has served groups all the time, so that somebody else may have had the queue. If this one was away and
        the group is where it has left it, nobody else has got anywhere.
        """
        is_other = lease.epoch != self.lease.epoch
        if lease.topic_id != self.lease.topic_id:
            return None
        was_away = self.lease.trust.is_broken and lease.offset == self._commits.known and not lease.tries
        if is_other and granter(lease.epoch) == granter(self.lease.epoch) and not was_away:
            return None
        if is_other and lease.offset > self.position:
            return None
        cancelled = self.cancel()
        self.state = self.state.after("renew")
        self.lease = lease
        self._must_verify = is_other
        self.slave = 0
        self.error = None
        self._commits.renewed(lease.offset)
        return [*cancelled, *self.tick(now)]

    def leave(self) -> list[Decision]:
        """Hand out and fetch nothing more; another member is to have the queue."""
        cancelled = self.cancel()
        self.state = self.state.after("leave")
        return cancelled

    def cancel(self) -> list[Decision]:
        """End the pull that is under way, if any; what it still brings is dropped."""
        if self.state is not _PULLING:
            return []
        self._end_pull()
        return [Cancel(self._number)]

    # ---- what brokers say -----------------------------------------------------------------------

    def frame_arrived(self, number: int, frame: Frame, now: float) -> list[Decision]:
        """Take in what a pull has brought."""
        if self.state is not _PULLING or number != self._number:
            return []
        if frame.is_last:
            self._end_pull()
        if frame.failure is not None:
            return self._refused(frame, frame.failure, now)
        self.failure = None
        self._pause_s = 0.0
        return self._take_in(frame, now) if self._end is None else self._take_in_of_range(frame, self._end, now)

    def pull_failed(self, number: int, error: MiniMQError | None, now: float) -> list[Decision]:
        """End a pull that did not begin, or whose stream broke; without an error it ended in good order."""
        if not self.is_pulling(number):
            return []
        self._end_pull()
        return self._failed(error, now)

    def _take_in(self, frame: Frame, now: float) -> list[Decision]:
        self._ahead.add(frame.batches, frame.next_offset, frame.now_ms, now)
        self._queue_end = frame.max_offset
        self._is_fresh_seek = False
        self._term = frame.term
        self._must_verify = False
        if self.slave:
            if frame.is_last and not frame.batches:  # it has caught up with what the slave has
                self.slave = 0
        elif frame.is_last and self._options.slaves and now >= self._no_advice_until:
            self.slave = frame.advised_slave
        return self.tick(now)

    def _take_in_of_range(self, frame: Frame, end: int, now: float) -> list[Decision]:
        if self._must_verify:  # the term has all of the range; what else the frame has is not wanted yet
            self._must_verify = False
            self._term = max(frame.term, self._term)
            return [*self.cancel(), *self.tick(now)]
        if 0 < self._term < frame.term:
            self._must_verify = True
            return [*self.cancel(), *self.tick(now)]
        if frame.max_offset >= end:
            self._term = max(frame.term, self._term)
        # One with a wanted tag may be beyond.
        batches = [stored for stored in frame.batches if stored.base_offset < end]
        beyond = end if len(batches) < len(frame.batches) else 0
        self._ahead.add(batches, max(frame.next_offset, beyond), frame.now_ms, now)
        if frame.is_last and not frame.batches and self._ahead.fetch_offset < end:
            kind = Unavailable if frame.from_slave else OffsetOutOfRange
            text = f"the queue ends at {frame.max_offset}{' at its slave' * frame.from_slave}"
            return self._failed(kind(text), now)
        return self.tick(now)

    def _refused(self, frame: Frame, error: MiniMQError, now: float) -> list[Decision]:
        absent = isinstance(error, OffsetOutOfRange | QueueNotFound | TopicNotFound)
        if frame.from_slave and (absent or (self._end is not None and not error.retriable)):
            # Its master may have it: that is waited for.
            return self._failed(Unavailable(f"a slave does not have it: {error.message}"), now)
        if isinstance(error, OffsetOutOfRange):
            if self._options.offset_reset != "error":
                self._term = frame.term
                return [*self._reset(frame.min_offset, frame.max_offset), *self.tick(now)]
            self.taken_back = self._end is not None and self._must_verify
        return self._failed(frame.placed(error, self.queue, self._ahead.fetch_offset), now)

    def _reset(self, first: int, end: int) -> list[Decision]:
        """Go on elsewhere, since the next offset is not stored; nothing is returned when nothing is missed.

        Deleted messages are passed over when all before them has been handed out. Beyond the end there will be others,
        so what was fetched is forgotten; the next commit may then go back.
        """
        wanted = self._ahead.fetch_offset
        sought, self._is_fresh_seek = self._is_fresh_seek, False
        if wanted <= end:
            self._ahead.skip_to(end if self._options.offset_reset == "latest" else first)
        else:
            wanted = self.position
            self._go_to(min(wanted, end))
            if self.position == wanted:
                return []
            self._commits.is_sought = True
        return [OffsetReset(self.queue, wanted, self._ahead.fetch_offset, first, end, sought)]

    def _failed(self, error: MiniMQError | None, now: float) -> list[Decision]:
        if self.slave:  # the master has all that there is
            self.slave, self._no_advice_until = 0, now + _SLAVE_BACKOFF_S
            return self.tick(now)
        if error is None or error.retriable:
            self.failure = error or Unavailable("the broker ended the stream")
            self._pause_s = longer(self._pause_s)
            self._retry_at = now + max(self._pause_s, self.failure.retry_after_s)
            self.state = self.state.after("wait")
            return []
        self.error = error
        self.state = self.state.after("fail")
        is_lost = self.lease.epoch and isinstance(error, Fenced | TopicNotFound | QueueNotFound)
        if is_lost or (self._end is None and isinstance(error, TopicNotFound)):
            # No failure of this consumer: the queue is another member's, or gone; it is asked for again.
            return [LeaseOver(self.lease.epoch, error)]
        self._is_error_reported = False
        return []

    # ---- handing out ----------------------------------------------------------------------------

    def hand_over(self, max_messages: int, now: float) -> HandOver:
        """Hand batches over; `tick` may then begin the next pull. To be called if `may_hand_over`."""
        self._note_given()
        self._handed, self._noted = self._ahead.hand_over(max_messages, self.moves, now), 0
        self.term_taken = self._term
        return self._handed

    def put_back(self, handed: HandOver) -> None:
        """Take back what the user has not got of the latest hand-over, unless something has moved the reader since."""
        if handed is self._handed and handed.moves == self.moves:
            self._note_given()
            self._handed = None
            self._ahead.put_back(handed)

    def damaged(self, handed: HandOver, error: MiniMQError) -> None:
        """Stay in front of a hand-over that cannot be decoded until a seek."""
        self.put_back(handed)
        self.error = error
        self.state = self.state.after("fail")

    def take_batch(self) -> tuple[EncodedBatch, int] | None:
        """Hand out the next batch as `ReadAhead.take_batch`; not to be mixed with `hand_over`."""
        return self._ahead.take_batch()

    def _note_given(self) -> None:
        handed = self._handed
        if handed is not None and handed.given > self._noted:
            self._noted = handed.given
            self._commits.is_unsaved = True

    # ---- commits --------------------------------------------------------------------------------

    def commit_due(self, offset: int, term: int, now: float, *, automatic: bool) -> Commit | None:
        """Return the commit of an offset in the log of a term; None if it is automatic, and there is no need for it."""
        # A queue that leaves may be granted anew meanwhile: then an offset that was not reached here may be one of a
        # topic that was deleted, and would skip messages of that which was made anew.
        if automatic and (self.is_deleted or offset > self.next_offset or self._commits.is_recorded(offset, now)):
            return None
        return self._commits.begin(self.queue, offset, self.lease, term)

    def delivers_alone(self, offset: int, tries: int, end: int) -> None:
        """Have commits at an offset tell of a delivery of messages from there to before `end`."""
        self._commits.alone = offset, tries, end

    def commit_answered(self, commit: Commit, now: float, failure: MiniMQError | None) -> None:
        """Note the outcome of a commit that was begun at that time."""
        self._note_given()
        self._commits.end(commit, self.position, now, failure)

    def may_be_recorded(self, epoch: int) -> bool:
        """Tell whether what was refused under a lease may be taken yet: the lease was renewed, or waits for that."""
        return self.lease.epoch != epoch or self.lease.trust.is_broken

    @property
    def is_deleted(self) -> bool:
        """True if the broker does not have the topic any more."""
        return self._commits.was_refused_as_deleted or isinstance(self.error, TopicNotFound)

    @property
    def is_uncommitted(self) -> bool:
        """True if it has read under a lease what was not recorded, and could have been."""
        self._note_given()
        return bool(self.lease.epoch) and (self._commits.is_unsaved or self._commits.is_sought) and not self.is_deleted

    def _end_pull(self) -> None:
        self.state = self.state.after("end")
        if self.error is not None:  # a batch was damaged meanwhile
            self.state = self.state.after("fail")

    def _room(self) -> tuple[int, int]:
        ahead, options = self._ahead, self._options
        messages, size = options.max_messages - ahead.messages, options.max_bytes - ahead.size
        if self._must_verify:
            return max(messages, 1), max(size, 1)
        if 2 * ahead.size > options.max_bytes or 2 * ahead.messages > options.max_messages:
            return 0, 0
        return messages if self._end is None else min(messages, self._end - ahead.fetch_offset), size

    def _go_to(self, offset: int) -> None:
        self._ahead.go_to(offset)
        self.error = None
        self.state = self.state.after("seek")
        self._queue_end = None
        self.moves += 1
