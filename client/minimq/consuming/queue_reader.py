"""The state machine that reads one queue: pure. Groups, assigned queues, broadcasting and range reads use it.

It alone owns the position, the term, the buffer and the lease. Its driver reports events and carries out the returned
decisions in order. Times are seconds on any monotonic clock.

    state     meaning                                    event                            next
    READY     no pull, since the buffer may be full      tick, with room in the buffer    PULLING
    PULLING   one pull is in flight                      last frame                       READY
                                                         retriable failure                WAITING
                                                         other failure                    FAILED
    WAITING   the last pull failed, and is retried       tick, at `wake_at`               PULLING
    FAILED    fetching and delivery have stopped         seek, go_back, renewed           READY
    LEAVING   revoked: the same, until it is released    renewed                          READY

`seek` and `go_back` lead from each state but LEAVING to READY, `damaged` to FAILED, `leave` to LEAVING. Pulls are
numbered: late frames of an earlier pull are dropped.
"""

from __future__ import annotations

import math
from enum import Enum

from minimq.connection.retry_schedule import longer
from minimq.consuming.member_state import Grant
from minimq.consuming.queue_decisions import Cancel, Commit, Decision, FetchOptions, Frame, LeaseOver, OffsetReset, Pull
from minimq.consuming.read_ahead import ReadAhead, ReadyBatches
from minimq.consuming.received import EncodedRecords
from minimq_common.errors import Fenced, MinimqError, OffsetOutOfRange, QueueNotFound, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue, granter

#: Seconds that a broker holds a pull without messages: less than the idle timeouts of proxies (30 to 60 s).
LONG_POLL_S = 15.0
#: Seconds after which an automatic commit repeats an unchanged offset: brokers delete groups after days without one.
OFFSET_REFRESH_S = 3600.0


class State(Enum):
    """The state of a reader; see the module."""

    READY = "ready"
    PULLING = "pulling"
    WAITING = "waiting"
    FAILED = "failed"
    LEAVING = "leaving"


_STOPPED = (State.FAILED, State.LEAVING)


class QueueReader:
    """Decides which pulls to make for one queue and buffers what they bring. Used on the connection's event loop."""

    def __init__(self, queue: MessageQueue, lease: Grant, options: FetchOptions) -> None:
        self.queue = queue
        self.lease = lease
        self.state = State.READY
        #: The permanent error of FAILED.
        self.error: MinimqError | None = None
        #: The retriable error of the latest pull, until a frame arrives.
        self.failure: MinimqError | None = None
        #: Time of the next retry; infinite unless WAITING.
        self.wake_at = math.inf
        self._pause_s = 0.0
        #: Number of jumps to another offset (seek, reset); a `ReadyBatches` made before a jump is stale.
        self.moves = 0
        #: Term of the log from which the latest delivered message came, at first the start term; 0 if unknown.
        self.term_taken = lease.term
        self._options = options
        self._ahead = ReadAhead(queue, lease.offset)
        #: The latest hand-over, and the value of its `done` that `_note_done` has accounted for.
        self._handed: ReadyBatches | None = None
        self._noted = 0
        #: Term of the log in which `fetch_offset` is known to be valid.
        self._term = lease.term
        self._queue_end: int | None = None
        self._is_error_reported = True
        self._is_paused = False
        #: Number of the latest pull.
        self._number = 0
        #: Pull even with a full buffer, to verify that the log of the new broker was not cut.
        self._must_verify = False
        # Commits.
        #: The committed offset of the group; None if unknown, after a failure.
        self._known: int | None = lease.offset
        #: The offset that was last committed under this lease, and when.
        self._recorded: int | None = None
        self._recorded_at = 0.0
        #: The reader has jumped since the last commit, so the next one may go back.
        self._is_sought = False
        #: Messages were finished since the last commit.
        self._is_unsaved = False
        self._was_rejected_as_deleted = False

    # ---- state ----------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Offset after the last message that the user has finished."""
        handed = self._unfinished()
        return self._ahead.position if handed is None else handed.position

    @property
    def next_offset(self) -> int:
        """Offset of the message that the user gets next."""
        handed = self._unfinished()
        return self._ahead.position if handed is None else handed.next_offset

    def _unfinished(self) -> ReadyBatches | None:
        handed = self._handed
        if handed is None or handed.moves != self.moves or (handed.is_over and not handed.is_cut):
            return None
        return handed

    @property
    def passed_over(self) -> int:
        """Number of messages before the position that the broker filtered out by their tags."""
        return self._ahead.passed_over

    @property
    def at_end(self) -> bool:
        """True if the user has every message that was stored when the broker last answered."""
        return self._queue_end is not None and self.next_offset >= self._queue_end

    @property
    def fetch_offset(self) -> int:
        """The offset that is fetched next."""
        return self._ahead.fetch_offset

    def is_pulling(self, number: int) -> bool:
        """Return whether this pull is in flight; frames of any other are dropped."""
        return self.state is State.PULLING and number == self._number

    def is_current(self, handed: ReadyBatches) -> bool:
        """Return whether this is the latest hand-over, not used up, and no jump has made it stale."""
        return handed is self._handed and handed.moves == self.moves and handed.done != handed.count

    def is_trusted(self, now: float) -> bool:
        """Return whether the lease still holds; always true without a lease."""
        return not self.lease.epoch or now < self.lease.trust.until

    def may_go_on(self, now: float) -> bool:
        """Return whether messages may be delivered: the lease holds, and no pause, error or revocation forbids it."""
        return not (self._is_paused or self.state in _STOPPED) and self.is_trusted(now)

    @property
    def open_hand_over(self) -> ReadyBatches | None:
        """The latest hand-over, if messages of it are still to be delivered or finished."""
        handed = self._handed
        return handed if handed is not None and handed.moves == self.moves and handed.done != handed.count else None

    @property
    def size(self) -> int:
        """Bytes of the encoded batches that are buffered or handed over."""
        handed = self.open_hand_over
        return self._ahead.size + (0 if handed is None else handed.size)

    def may_hand_over(self, now: float) -> bool:
        """Return whether `hand_over` may be called: batches may be delivered, and follow a finished one."""
        if self.open_hand_over is not None:
            return False
        has_any = self._ahead.batches or self._unfinished() is not None  # such as the batches after damage
        return bool(has_any) and self.may_go_on(now)

    @property
    def has_unreported_error(self) -> bool:
        """True until `take_error` has returned the error."""
        return self.error is not None and not self._is_error_reported

    def take_error(self) -> MinimqError | None:
        """Return the error that the user has not seen yet; each error once."""
        announced, self._is_error_reported = self._is_error_reported, True
        return None if announced else self.error

    # ---- commands of the driver, the user and the group member -----------------------------------

    def tick(self, now: float) -> list[Decision]:
        """Begin the next pull if it is due and the buffer has room."""
        if not (self.state is State.READY or (self.state is State.WAITING and now >= self.wake_at)):
            return []
        max_messages, max_bytes = self._room()
        if max_messages <= 0:
            return []
        self._number += 1
        self._enter(State.PULLING)
        # The first pull returns at once, to learn the end of the queue.
        wait_s = 0.0 if self._queue_end is None else LONG_POLL_S
        offset = self._ahead.fetch_offset
        return [Pull(self._number, offset, max_messages, max_bytes, wait_s, self._term, self.lease.epoch)]

    def seek(self, offset: int, now: float) -> list[Decision]:
        """Continue at another offset; the next commit may then go back."""
        self.term_taken = 0
        decisions = self.go_back(offset, now)
        self._is_sought = True
        return decisions

    def go_back(self, position: int, now: float) -> list[Decision]:
        """Redeliver from an offset on; unlike after a seek, the next commit may not go back."""
        cancelled = self.cancel()
        self._go_to(position)
        self._term = self.term_taken
        return [*cancelled, *self.tick(now)]

    def pause(self, *, paused: bool) -> None:
        """Stop or resume delivery; fetching goes on."""
        self._is_paused = paused

    def renewed(self, lease: Grant, now: float) -> list[Decision] | None:
        """Continue at the current position under a renewed lease, so that nothing is delivered twice.

        Returns None if another member may have had the queue, so that a new reader must start from the commit: the
        topic was recreated, the group has committed further, or the lease has a new epoch although the same broker run
        granted the old one. The last is harmless if this member was disconnected, the commit is still its own, and no
        member has died with messages of the queue.
        """
        is_other = lease.epoch != self.lease.epoch
        if lease.topic_id != self.lease.topic_id:
            return None
        was_offline = self.lease.trust.is_broken and lease.offset == self._known
        if is_other and granter(lease.epoch) == granter(self.lease.epoch) and not was_offline:
            return None
        if is_other and lease.offset > self.position and not self._is_sought:
            return None
        cancelled = self.cancel()
        self.lease = lease
        self._must_verify = is_other
        self._enter(State.READY)
        self._known, self._recorded, self._was_rejected_as_deleted = lease.offset, None, False
        return [*cancelled, *self.tick(now)]

    def leave(self) -> list[Decision]:
        """Stop fetching and delivering: the queue was revoked for another member."""
        cancelled = self.cancel()
        self._enter(State.LEAVING, self.error)  # `is_deleted` stays true
        return cancelled

    def cancel(self) -> list[Decision]:
        """Cancel the pull in flight, if any; late frames of it are dropped."""
        if self.state is not State.PULLING:
            return []
        self._enter(State.READY)
        return [Cancel(self._number)]

    # ---- answers of brokers ---------------------------------------------------------------------

    def frame_arrived(self, number: int, frame: Frame, now: float) -> list[Decision]:
        """Buffer the batches of a frame, or handle its failure."""
        if not self.is_pulling(number):
            return []
        if frame.is_last:
            self._enter(State.READY)
        if frame.failure is not None:
            return self._rejected(frame, frame.failure, now)
        self.failure = None
        self._pause_s = 0.0
        self._ahead.add(frame.batches, frame.next_offset)
        self._queue_end = frame.max_offset
        self._term = frame.term
        self._must_verify = False
        return self.tick(now)

    def pull_failed(self, number: int, error: MinimqError | None, now: float) -> list[Decision]:
        """Handle a pull that could not begin or whose stream ended; no error: a normal end."""
        return self._failed(error, now) if self.is_pulling(number) else []

    def _rejected(self, frame: Frame, error: MinimqError, now: float) -> list[Decision]:
        if frame.from_slave and isinstance(error, OffsetOutOfRange | QueueNotFound | TopicNotFound):
            # The master may have it: retry there.
            return self._failed(Unavailable(f"a slave does not have it: {error.message}"), now)
        if isinstance(error, OffsetOutOfRange) and self._options.offset_reset != "error":
            self._term = frame.term
            return [*self._reset(frame.min_offset, frame.max_offset), *self.tick(now)]
        return self._failed(frame.placed(error, self.queue, self._ahead.fetch_offset), now)

    def _reset(self, first: int, end: int) -> list[Decision]:
        """Apply `offset_reset`, because the next offset is not stored.

        If it lies before the stored messages, buffered messages are delivered first. If it lies beyond the end, new
        messages will get the same offsets, so the buffer is dropped, and the next commit may go back. Returns no
        decision if the position does not change.
        """
        wanted = self._ahead.fetch_offset
        if wanted <= end:
            self._ahead.skip_to(end if self._options.offset_reset == "latest" else first)
        else:
            wanted = self.position
            self._go_to(min(wanted, end))
            if self.position == wanted:
                return []
            self._is_sought = True
        return [OffsetReset(self.queue, wanted, self._ahead.fetch_offset, first, end)]

    def _failed(self, error: MinimqError | None, now: float) -> list[Decision]:
        if error is None or error.retriable:
            self.failure = error or Unavailable("the broker ended the stream")
            self._pause_s = longer(self._pause_s)
            self._enter(State.WAITING, wake_at=now + max(self._pause_s, self.failure.retry_after_s))
            return []
        self._enter(State.FAILED, error)
        is_lost = self.lease.epoch and isinstance(error, Fenced | QueueNotFound)
        if is_lost or isinstance(error, TopicNotFound):
            # Not an error for the user: the lease or the topic is gone, and the owner asks for the queue again.
            return [LeaseOver(self.lease.epoch, error)]
        self._is_error_reported = False
        return []

    # ---- delivery -------------------------------------------------------------------------------

    def hand_over(self, max_messages: int) -> ReadyBatches:
        """Remove the next batches from the buffer for the user; requires `may_hand_over`. Call `tick` afterwards."""
        self._note_done()
        if (cut := self._unfinished()) is not None:
            self.put_back(cut)
        max_bytes = self._options.share_bytes // 2  # so that the next batches are fetched while the user has these
        self._handed, self._noted = self._ahead.hand_over(max_messages, max_bytes, self.moves), 0
        self.term_taken = self._term
        return self._handed

    def put_back(self, handed: ReadyBatches) -> None:
        """Return the undelivered rest of the latest hand-over to the buffer, unless a jump has made it stale."""
        if handed is self._handed and handed.moves == self.moves:
            self._note_done()
            self._handed = None
            self._ahead.put_back(handed)

    def damaged(self, handed: ReadyBatches, error: MinimqError) -> list[Decision]:
        """Stop before a hand-over that cannot be decoded, until a seek."""
        self.put_back(handed)
        cancelled = self.cancel()
        self._enter(State.FAILED, error)
        return cancelled

    def take_batch(self) -> tuple[EncodedRecords, int] | None:
        """See `ReadAhead.take_batch`; do not mix with `hand_over`."""
        return self._ahead.take_batch()

    def _note_done(self) -> None:
        handed = self._handed
        if handed is not None and handed.done > self._noted:
            self._noted = handed.done
            self._is_unsaved = True

    # ---- commits --------------------------------------------------------------------------------

    def commit_due(self, offset: int, term: int, now: float, *, automatic: bool) -> Commit | None:
        """Return the commit of an offset in the log of a term; None if an automatic commit is not needed."""
        # An offset beyond `next_offset` is from before the queue was lost and granted anew. If its topic was deleted
        # and recreated meanwhile, committing it would skip messages.
        is_recorded = self._recorded == offset and now - self._recorded_at < OFFSET_REFRESH_S
        if automatic and (self.is_deleted or offset > self.next_offset or is_recorded):
            return None
        sought, self._is_sought = self._is_sought, False  # a later seek belongs to the next commit
        lease = self.lease
        return Commit(self.queue, offset, lease.epoch, lease.topic_id, sought, lease.address, term)

    def commit_answered(self, commit: Commit, now: float, failure: MinimqError | None) -> None:
        """Record the outcome of a commit that began at `now`."""
        self._note_done()
        if failure is None:
            self._recorded = self._known = commit.offset
            self._recorded_at = now
            self._is_unsaved &= commit.offset < self.position
            return
        self._recorded = None
        if not isinstance(failure, Fenced):  # the broker may have recorded it nevertheless
            self._known = None
        self._is_sought |= commit.sought
        self._was_rejected_as_deleted |= commit.epoch > 0 and isinstance(failure, TopicNotFound)

    def may_be_recorded(self, epoch: int) -> bool:
        """Return whether a commit that was fenced under this epoch may succeed later: under a renewed lease."""
        return self.lease.epoch != epoch or self.lease.trust.is_broken

    @property
    def is_deleted(self) -> bool:
        """True if the broker has answered that the topic no longer exists."""
        return self._was_rejected_as_deleted or isinstance(self.error, TopicNotFound)

    @property
    def is_uncommitted(self) -> bool:
        """True if progress under the lease is not committed, although the topic exists."""
        self._note_done()
        return bool(self.lease.epoch) and (self._is_unsaved or self._is_sought) and not self.is_deleted

    def _room(self) -> tuple[int, int]:
        ahead, options = self._ahead, self._options
        max_messages, max_bytes = options.share_messages, options.share_bytes
        if (handed := self.open_hand_over) is not None:
            max_bytes -= handed.size
        messages, size = max_messages - ahead.messages, max_bytes - ahead.size
        if self._must_verify:
            return max(messages, 1), max(size, 1)
        if size <= 0 or 2 * ahead.size > max_bytes or 2 * ahead.messages > max_messages:
            return 0, 0
        return messages, size

    def _go_to(self, offset: int) -> None:
        self._ahead.go_to(offset)
        self._enter(self.state if self.state is State.LEAVING else State.READY)
        self._queue_end = None
        self.moves += 1

    def _enter(self, state: State, error: MinimqError | None = None, *, wake_at: float = math.inf) -> None:
        self.state, self.error, self.wake_at = state, error, wake_at
