"""The part of a queue that is recorded as read, as its reader knows it: pure."""

from __future__ import annotations

from minimq.receiving.member_state import Grant
from minimq.receiving.queue_decisions import Commit
from minimq_common.errors import MiniMQError, TopicNotFound
from minimq_common.model import MessageQueue


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
            self._offset = self.known = None  # the broker may have it all the same
            self.is_sought |= commit.sought
            self.was_refused_as_deleted |= commit.epoch > 0 and isinstance(failure, TopicNotFound)
        else:
            self._offset = self.known = commit.offset
            self._at = now
            self.is_unsaved &= commit.offset < position
