"""The clock of redeliveries."""

from __future__ import annotations

import time

_NS_PER_MS = 1_000_000


class PopClock:
    """A time of day that is read once and then advances monotonically, so that clock changes redeliver no message."""

    def __init__(self, not_before_ms: int = 0) -> None:
        self._ahead_ns = max(time.time_ns(), not_before_ms * _NS_PER_MS) - time.monotonic_ns()

    def now_ms(self) -> int:
        return (self._ahead_ns + time.monotonic_ns()) // _NS_PER_MS

    def after_ms(self, duration_ms: int) -> int:
        """Return the time after a duration in ms since 1970, rounded up so that no timeout ends early."""
        return -((self._ahead_ns + time.monotonic_ns()) // -_NS_PER_MS) + duration_ms
