"""The changes of a popped queue in one group commit: tried on a copy, and recorded as part of a fact."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from minimq_broker.core.popping.pop_queue import PopQueue
from minimq_broker.core.popping.pop_requests import Claim, Leave, Reopen, Settle, Take
from minimq_broker.core.popping.pop_runs import QueueMoved, Run, RunState


class PopKey(NamedTuple):
    """A queue, and the group that pops it."""

    group: str
    topic_id: int
    queue_id: int


class PopDraft:
    """A popped queue as it will be after a commit."""

    def __init__(self, key: PopKey, queue: PopQueue) -> None:
        self._key = key
        self.queue = queue
        self._runs: list[Run] = []
        self._done = 0

    def drop_before(self, first: int) -> int:
        """Pass over deleted messages; return how many of them were not settled."""
        if first <= self.queue.done:
            return 0
        missed = self.queue.unsettled_before(first)
        self.queue.drop_before(first)
        self._done = first
        # Whoever repeats the changes drops first, and what follows cannot be true of messages that are gone.
        self._runs = [run.part(max(run.first, first), run.end) for run in self._runs if run.end > first]
        return missed

    def take(
        self, wanted: Take, now_ms: int, readable_end: int, epoch: int, is_busy: Callable[[], bool]
    ) -> list[Run] | None:
        """Deliver messages; see `PopQueue.take`. Return None if one has to be alone and the consumer is busy."""
        runs = self.queue.take(wanted, now_ms, readable_end, epoch)
        if any(run.state is RunState.OUT and run.lost for run in runs) and is_busy():
            return None
        return [run for run in self._put(runs) if run.state is RunState.OUT]

    def settle(self, settled: Settle) -> list[tuple[int, int]]:
        """Settle messages; return those that were redelivered since."""
        found, expired, busy = self.queue.settle(settled)
        self._put(found)
        if busy is not None:
            raise busy
        return expired

    def claim(self, claimed: Claim) -> None:
        """Settle messages that no consumer has taken."""
        self._put(self.queue.claim(claimed))

    def reopen(self, wanted: Reopen, stored: tuple[int, int]) -> None:
        """Have settled messages delivered again."""
        self._put(self.queue.reopen(wanted, stored))

    def free(self, gone: Leave) -> list[Run]:
        """Release the messages of a consumer that is gone."""
        return self._put(self.queue.freed(gone))

    def changes(self) -> QueueMoved | None:
        """Return the changes since the previous call; None if there are none."""
        if not self._runs and not self._done:
            return None
        moved = QueueMoved(self._key.topic_id, self._key.queue_id, tuple(self._runs), self._done)
        self._runs, self._done = [], 0
        return moved

    def _put(self, runs: list[Run]) -> list[Run]:
        for run in runs:
            self.queue.put(run)
        self._runs += runs
        return runs
