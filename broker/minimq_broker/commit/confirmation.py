"""Groups that are not yet on the disks of all in-sync replicas: who waits for them, and the end that readers see.

Up to the confirmed position, all in-sync replicas have the log. Jobs are answered, and entries visible to readers, only
once they are confirmed: the next master may lack all others.

Before the writer applies the entries of a group, it `cover`s their queues, so that readers do not see them grow. After
that it `add`s the group. A broker that does not wait for replicas does neither.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from minimq_broker.commit.jobs import Job, Notify
from minimq_broker.state.state import QueueEnd, QueueKey
from minimq_common.errors import MinimqError, NotEnoughReplicas


class _UnconfirmedGroup(NamedTuple):
    end: int
    #: Monotonic time.
    since: float
    jobs: list[Job]
    queues: Set[QueueKey]


class Confirmation:
    """The groups that wait for their confirmation. Any thread may call any method."""

    def __init__(self, notify: Notify, *, waits: bool, timeout_s: float = 5.0) -> None:
        self.notify, self._timeout_s = notify, timeout_s
        #: The latest known confirmed position; at a slave it may be beyond the end of the log.
        self.position = 0
        #: True if new groups wait for a confirmation.
        self.waits = waits
        self._changed = threading.Condition()
        self._groups: deque[_UnconfirmedGroup] = deque()
        #: The end of each covered queue before each unconfirmed group; readers see the first one. No deque is ever
        #: empty, since other threads read them without the lock.
        self._ends: dict[QueueKey, deque[QueueEnd]] = {}

    def visible(self, queue: QueueKey, end: QueueEnd) -> QueueEnd:
        """Return the end of a queue for readers. `end` is its end in the state, read before this call."""
        covered = self._ends.get(queue)
        return covered[0] if covered and covered[0].offset < end.offset else end

    # ---- by the writer --------------------------------------------------------------------------------

    def cover(self, ends: Mapping[QueueKey, QueueEnd]) -> None:
        """Freeze the ends of queues that readers see, until the group that is `add`ed next is confirmed."""
        with self._changed:
            for queue, end in ends.items():
                self._ends.setdefault(queue, deque()).append(end)

    def add(self, end: int, jobs: list[Job], queues: Set[QueueKey], now: float) -> None:
        """Keep an applied group, with the queues that were covered for it, until it is confirmed."""
        with self._changed:
            self._groups.append(_UnconfirmedGroup(end, now, jobs, queues))
            released = self._release(self.position)
        self._tell(*released)

    def wait(self, position: int, timeout_s: float) -> bool:
        """Block until everything up to a position is confirmed; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.waits or self.position >= position, timeout_s)

    def restart(self, *, waits: bool, end: int) -> None:
        """Begin a new role at the end of the log: confirmations come from another source from now on."""
        with self._changed:
            self.position = min(self.position, end) if self.waits else end
            self.waits = waits
            released = self._release(self.position)
        self._tell(*released)

    def cut(self, end: int) -> None:
        """Drop all groups: the log was truncated to `end`, and recovery adds the remaining ones again."""
        with self._changed:
            self.position = min(self.position, end)
            self._groups.clear()
            self._ends = {}

    # ---- by the replication ------------------------------------------------------------------------------

    def confirm(self, position: int) -> None:
        """Answer all jobs up to a confirmed log position. Ignores a position below the current one."""
        with self._changed:
            if position <= self.position:
                return
            self.position = position
            released = self._release(position)
            self._changed.notify_all()
        self._tell(*released)

    def expire(self, now: float) -> None:
        """Reject jobs that have waited too long for replicas. `now` is monotonic."""
        self.reject(
            lambda: NotEnoughReplicas(
                f"other replicas did not confirm within {self._timeout_s:g} s what was sent: it is stored here, and "
                "may be sent again"
            ),
            before=now - self._timeout_s,
        )

    def reject(self, reason: Callable[[], MinimqError], before: float = float("inf")) -> None:
        """Answer all jobs added before a monotonic time with an error. Their entries may still be confirmed."""
        rejected: list[Job] = []
        with self._changed:
            for group in self._groups:
                if group.since >= before:
                    break
                rejected += group.jobs
                group.jobs.clear()
        for job in rejected:
            job.error = reason()  # a new one per job: an exception keeps a traceback
        self._tell(rejected, frozenset())

    def _release(self, position: int) -> tuple[list[Job], Set[QueueKey]]:
        jobs: list[Job] = []
        grown: set[QueueKey] = set()
        while self._groups and (not self.waits or self._groups[0].end <= position):
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
