"""Groups on this disk but not yet on those of the other replicas: their waiters, and the visible end for readers.

The confirmed position is the one up to which all in-sync replicas have the log. Only confirmed entries are answered and
can be read: nothing else is sure to be there under the next master.

The writer `cover`s the queues of a group before its entries are applied, so that readers do not see them grow, and
`add`s the group behind it. A broker that does not wait for others does neither.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from minimq_broker.core.state import QueueEnd, QueueKey
from minimq_broker.store.jobs import Job, Notify
from minimq_common.errors import MiniMQError


class _UnconfirmedGroup(NamedTuple):
    """A group that became part of the log together: it ends at a log position."""

    end: int
    since: float
    jobs: list[Job]
    queues: Set[QueueKey]


class Confirmation:
    """The groups that wait until they are confirmed. Any thread may call any method."""

    def __init__(self, notify: Notify, *, holds: bool) -> None:
        self.notify = notify
        self._position = 0
        #: True if entries written from now on wait until they are confirmed.
        self.holds = holds
        self._changed = threading.Condition()
        self._groups: deque[_UnconfirmedGroup] = deque()
        #: Where queues end for readers, and at the groups after that. None of these rows is ever empty: others look.
        self._ends: dict[QueueKey, deque[QueueEnd]] = {}

    @property
    def position(self) -> int:
        """The confirmed position, as known here; it may be beyond the end of the log of a slave."""
        return self._position

    def visible(self, queue: QueueKey, end: QueueEnd) -> QueueEnd:
        """Return where a queue ends for readers; `end` is where it ends in the state, looked up before this call."""
        covered = self._ends.get(queue)
        return covered[0] if covered and covered[0].offset < end.offset else end

    # ---- by the writer --------------------------------------------------------------------------------

    def cover(self, ends: Mapping[QueueKey, QueueEnd]) -> None:
        """Let readers see queues end where they do now, until the group that is `add`ed next is confirmed."""
        with self._changed:
            for queue, end in ends.items():
                self._ends.setdefault(queue, deque()).append(end)

    def add(self, end: int, jobs: list[Job], queues: Set[QueueKey], now: float) -> None:
        """Keep a group that is applied, with the queues that were covered for it, until it is confirmed."""
        with self._changed:
            self._groups.append(_UnconfirmedGroup(end, now, jobs, queues))
            released = self._release(self._position)
        self._tell(*released)

    def wait(self, position: int, timeout_s: float) -> bool:
        """Wait until everything up to a position is confirmed; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.holds or self._position >= position, timeout_s)

    def restart(self, *, holds: bool, end: int) -> None:
        """Begin a new role at the end of the log: who may confirm what comes next is another one."""
        with self._changed:
            self._position = min(self._position, end) if self.holds else end
            self.holds = holds
            released = self._release(self._position)
        self._tell(*released)

    def cut(self, end: int) -> None:
        """Forget the groups: the log ends at a position from now on, and those that are left are added anew."""
        with self._changed:
            self._position = min(self._position, end)
            self._groups.clear()
            self._ends = {}

    # ---- by whoever knows of the other replicas ----------------------------------------------------------

    def confirm(self, position: int) -> None:
        """Take note that all up to a log position is confirmed. It never goes back."""
        with self._changed:
            if position <= self._position:
                return
            self._position = position
            released = self._release(position)
            self._changed.notify_all()
        self._tell(*released)

    def refuse(self, reason: Callable[[], MiniMQError], before: float = float("inf")) -> None:
        """Answer all jobs that wait since before a time by an error. Their entries stay, and keep waiting."""
        refused: list[Job] = []
        with self._changed:
            for group in self._groups:
                if group.since >= before:
                    break
                refused += group.jobs
                group.jobs.clear()
        for job in refused:
            job.error = reason()  # each its own: an exception keeps a traceback
        self._tell(refused, frozenset())

    def _release(self, position: int) -> tuple[list[Job], Set[QueueKey]]:
        jobs: list[Job] = []
        grown: set[QueueKey] = set()
        while self._groups and (not self.holds or self._groups[0].end <= position):
            group = self._groups.popleft()
            jobs += group.jobs
            grown |= group.queues
            for queue in group.queues:
                if len(self._ends[queue]) == 1:
                    del self._ends[queue]
                else:
                    self._ends[queue].popleft()
        return jobs, grown

    def _tell(self, jobs: list[Job], grown: Set[QueueKey]) -> None:
        if jobs or grown:
            self.notify(jobs, grown)
