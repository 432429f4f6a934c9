"""Passes finished jobs from the writer's thread to the event loop.

A wake-up by another thread costs an event loop about as much as a small commit. So after it has submitted a lone small
job, it blocks until the writer has finished, but only for a moment: a disk may hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Set
from queue import Empty, SimpleQueue

from minimq_broker.commit.jobs import Job, Notify
from minimq_broker.state.state import QueueKey

_MAX_WAIT_S = 0.002
#: After a commit that took longer, the loop does not wait for this time: a slow disk takes at most a tenth of its time.
_PAUSE_S = 10 * _MAX_WAIT_S


class FinishedJobs:
    """The jobs of finished commits, with the queues that have grown. `put` is for any thread, the rest for the loop."""

    def __init__(self, finish: Notify) -> None:
        """`finish` is called on the event loop."""
        self._finish = finish
        self._queue: SimpleQueue[tuple[list[Job], Set[QueueKey]]] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._is_waiting = False
        #: Loop time before which `wait` would be too slow, because the latest commit was.
        self.wait_from = -math.inf

    def put(self, jobs: list[Job], grown: Set[QueueKey]) -> None:
        """Let the event loop finish jobs, in the order of these calls."""
        self._queue.put((jobs, grown))
        if not self._is_waiting and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish_all)

    def wait(self) -> None:
        """Block the event loop until the next jobs are finished, but only for a moment."""
        self._is_waiting = True
        try:
            self._finish(*self._queue.get(timeout=_MAX_WAIT_S))
        except Empty:
            self.wait_from = self._loop.time() + _PAUSE_S
        finally:
            self._is_waiting = False
        if not self._queue.empty():  # after `_is_waiting` is off: `put` wakes nothing while it is on
            self._finish_all()

    def _finish_all(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._finish(*self._queue.get_nowait())
