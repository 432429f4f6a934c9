"""Measures how long the writer waits for the disk, also while it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: A sync that takes longer is reported as slow.
SLOW_S = 1.0
#: Seconds for which the slowest sync is reported.
_MEMORY_S = 60.0


class SyncWatch:
    """The running sync and the slowest recent one. The writer's thread notes them; any thread may read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When the running sync began; None if none is running.
        self.began_at: float | None = None
        #: End and duration of the slowest recent sync, if it was slow.
        self._slowest = (0.0, 0.0)

    @contextmanager
    def sync(self) -> Iterator[None]:
        """Measure the block, which waits for the disk."""
        self.began_at = began_at = self._clock()
        try:
            yield
        finally:
            now = self._clock()
            if now - began_at >= SLOW_S:
                self.was_slow(now, now - began_at)
            self.began_at = None

    def was_slow(self, now: float, took_s: float) -> None:
        """Note a sync that took `SLOW_S` or longer."""
        ended_at, slowest_s = self._slowest
        if took_s >= slowest_s or now - ended_at > _MEMORY_S:
            self._slowest = now, took_s

    @property
    def running_s(self) -> float:
        """Seconds since the running sync began; 0 if none is running."""
        began_at = self.began_at
        return 0.0 if began_at is None else self._clock() - began_at

    @property
    def slow_s(self) -> float:
        """Seconds of the slowest sync of the last minute, or of the running one; 0 if it was fast."""
        ended_at, slowest_s = self._slowest
        recent_s = slowest_s if self._clock() - ended_at <= _MEMORY_S else 0.0
        slow_s = max(recent_s, self.running_s)
        return slow_s if slow_s >= SLOW_S else 0.0
