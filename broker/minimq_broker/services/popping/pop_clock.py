"""The clock for the redelivery of messages."""

from __future__ import annotations

import time

_MS = 1_000_000


class PopClock:
    """A time of day that is read once and then advances monotonically: setting the clock releases no message."""

    def __init__(self, not_before_ms: int = 0) -> None:
        self._ahead_ns = max(time.time_ns(), not_before_ms * _MS) - time.monotonic_ns()

    def now_ms(self) -> int:
        """Return the time in ms since 1970, rounded down."""
        return (self._ahead_ns + time.monotonic_ns()) // _MS

    def after_ms(self, duration_ms: int) -> int:
        """Return the time after a duration, in ms since 1970, rounded up: no invisible duration ends too early."""
        return -((self._ahead_ns + time.monotonic_ns()) // -_MS) + duration_ms
