"""The clock for the redelivery of messages."""

from __future__ import annotations

import time

_MS = 1_000_000


class PopClock:
    """A time of day that is read once and then advances monotonically: a clock that is set meanwhile frees nothing.

    Args:
        not_before_ms: a time that is over, in ms since 1970: it does not go back behind what the log says.
    """

    def __init__(self, not_before_ms: int = 0) -> None:
        self._ahead_ns = max(time.time_ns(), not_before_ms * _MS) - time.monotonic_ns()

    def now_ms(self) -> int:
        """Return the time in ms since 1970, as far as it is over."""
        return (self._ahead_ns + time.monotonic_ns()) // _MS

    def after_ms(self, duration_ms: int) -> int:
        """Return the first ms since 1970 at which so many are over, the begun one aside: nothing ends too early."""
        return -((self._ahead_ns + time.monotonic_ns()) // -_MS) + duration_ms
