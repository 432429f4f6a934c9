"""The values of a `QueueReader`: its options, states and decisions, and what it records as read: pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Literal, NamedTuple

from minimq.receiving.member_state import Grant
from minimq.receiving.received import EncodedBatch
from minimq_common.errors import DamagedMessages, Fenced, MiniMQError, TopicNotFound
from minimq_common.model import MessageQueue
from minimq_common.words import count_of


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A consumer goes on at another offset, because the one that it was to read next is not stored.

    Attributes:
        queue: where.
        wanted: the offset that it was to read next.
        offset: where it goes on.
        min_offset: first offset that was stored then.
        max_offset: the offset that the next message was to get then; with a new master when its term began.
        sought: the consumer was sent to `wanted` by a seek, and has read nothing since.
    """

    queue: MessageQueue
    wanted: int
    offset: int
    min_offset: int
    max_offset: int
    sought: bool = False

    @property
    def deleted(self) -> int:
        """Number of messages that were deleted before this consumer could read them."""
        return max(self.min_offset - self.wanted, 0)

    @property
    def missed(self) -> int:
        """Number of messages that this consumer passes over: the deleted ones, and with "latest" all others."""
        return max(self.offset - self.wanted, 0)

    @property
    def is_back(self) -> bool:
        """True if the queue ends before what was to be read.

        Its log was cut, and goes on with other messages; or a seek went beyond its end.
        """
        return self.offset < self.wanted

    def __str__(self) -> str:
        """Say what happened in a sentence."""
        where = f"offset {self.wanted} of queue {self.queue}"
        if self.is_back and self.sought:
            return f"{where} was sought, but the queue ends at {self.max_offset}: going on at {self.offset}"
        if self.is_back:
            return f"{where} was taken back, since the queue lost its last messages: going on at {self.offset}"
        rest = self.missed - self.deleted
        others = f" and {rest} passed over" if rest else ""
        gone = f"{count_of(self.deleted, 'message')} {'is' if self.deleted == 1 else 'are'} gone"
        return f"{where} is not stored any more: {gone}{others}, going on at {self.offset}"


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Options of fetching a queue."""

    max_messages: int
    max_bytes: int
    wait_s: float = 0.0
    offset_reset: Literal["earliest", "latest", "error"] = "error"
    slaves: bool = False
    recommit_s: float = math.inf


class ReaderState(StrEnum):
    """The state of fetching a queue."""

    IDLE = auto()  # enough was fetched, or all of the range
    PULLING = auto()  # a pull is under way
    WAITING = auto()  # the latest pull failed, and the next one begins at `wake_at`
    FAILED = auto()  # nothing is fetched or handed out, as `error` says
    LEAVING = auto()  # nothing is fetched or handed out: another member is to have the queue

    def after(self, event: str) -> ReaderState:
        """Return the state after an event of `_NEXT`, which stays where it has no entry there."""
        return _NEXT[event].get(self, self)


_IDLE, _PULLING, _WAITING, _FAILED, _LEAVING = ReaderState
_NEXT: Mapping[str, Mapping[ReaderState, ReaderState]] = {
    "begin": {_IDLE: _PULLING, _WAITING: _PULLING},
    "end": {_PULLING: _IDLE},  # of a pull: all came, it failed, or it was cancelled
    "wait": {_IDLE: _WAITING},
    "fail": {_IDLE: _FAILED, _WAITING: _FAILED},  # a pull that is under way ends first
    "seek": {_WAITING: _IDLE, _FAILED: _IDLE},
    "renew": {_WAITING: _IDLE, _FAILED: _IDLE, _LEAVING: _IDLE},  # the lease
    "leave": dict.fromkeys(ReaderState, _LEAVING),
}


class Frame(NamedTuple):
    """One answer of a broker to a pull."""

    batches: Sequence[EncodedBatch] = ()
    #: Where the pull goes on, or may after damage; 0 behind the last batch.
    next_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    #: The latest one in the log that was read; 0 when it is not known.
    term: int = 0
    now_ms: int = 0
    is_last: bool = False
    from_slave: bool = False
    #: Broker id of a slave that is to be read next, 0 when there is none.
    advised_slave: int = 0
    failure: MiniMQError | None = None

    def placed(self, error: MiniMQError, queue: MessageQueue, offset: int) -> MiniMQError:
        """Return an error with its place, if it is about messages that are damaged at an offset."""
        return error.at(queue, offset, self.next_offset or None) if isinstance(error, DamagedMessages) else error


class Pull(NamedTuple):
    """Begin a pull."""

    number: int
    offset: int
    #: Most messages that it may bring.
    max_messages: int
    #: Most bytes that it may bring; the last batch may overshoot them.
    max_bytes: int
    #: Seconds that the broker holds it while there is nothing to read.
    wait_s: float = 0.0
    #: The latest one in the log in which the offset is known to be right, 0 when none is known.
    term: int = 0
    #: Of the lease under which it is made, 0 for none.
    epoch: int = 0
    #: Broker id of a slave to be read, 0 for wherever the queue is read.
    slave: int = 0


class Cancel(NamedTuple):
    """End a pull."""

    number: int


class LeaseOver(NamedTuple):
    """Tell the owner that the broker does not know the lease any more; or without one, the topic."""

    epoch: int
    error: MiniMQError


#: An `OffsetReset` is for the user.
Decision = Pull | Cancel | LeaseOver | OffsetReset


class Commit(NamedTuple):
    """An offset to record."""

    queue: MessageQueue
    offset: int
    epoch: int = 0
    topic_id: int = 0
    #: The reader has moved: the recorded offset may go back.
    sought: bool = False
    #: Of the broker that has granted the lease; empty without one.
    address: str = ""
    term: int = 0
    #: Number of the delivery that is made alone from the offset on; 0 if none is.
    tries: int = 0
    in_hand_end: int = 0


class QueueEvent(Enum):
    """A change of a queue without the user's doing."""

    GAINED = "gained"
    LOST = "lost"


class CommitState:
    """The latest commit of one queue. Times are seconds on any clock that does not go back."""

    def __init__(self, recommit_s: float, known: int | None = None) -> None:
        self.known = known
        self.is_sought = False
        self.is_unsaved = False
        self.was_refused_as_deleted = False
        self.alone = (-1, 0, 0)
        self._recommit_s = recommit_s
        self._offset: int | None = None
        self._at = 0.0

    def renewed(self, offset: int) -> None:
        """Count nothing as recorded by this consumer: the lease is another one."""
        self.known = offset
        self._offset = None
        self.was_refused_as_deleted = False

    def is_recorded(self, offset: int, now: float) -> bool:
        """Tell whether an offset was recorded lately."""
        return self._offset == offset and now - self._at < self._recommit_s

    def begin(self, queue: MessageQueue, offset: int, lease: Grant, term: int) -> Commit:
        """Return a commit; a seek that comes meanwhile is for the next one."""
        alone = self.alone[1:] if self.alone[0] == offset else ()
        commit = Commit(queue, offset, lease.epoch, lease.topic_id, self.is_sought, lease.address, term, *alone)
        self.is_sought = False
        return commit

    def end(self, commit: Commit, position: int, now: float, failure: MiniMQError | None) -> None:
        """Take note of what became of a commit that was begun at that time, while the reader is at a position."""
        if failure is not None:
            self._offset = None
            if not isinstance(failure, Fenced):  # else the broker may have it all the same
                self.known = None
            self.is_sought |= commit.sought
            self.was_refused_as_deleted |= commit.epoch > 0 and isinstance(failure, TopicNotFound)
        else:
            self._offset = self.known = commit.offset
            self._at = now
            self.is_unsaved &= commit.offset < position
