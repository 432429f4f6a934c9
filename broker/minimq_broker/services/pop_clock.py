"""The time by which messages that were handed out come again."""

from __future__ import annotations

import time

from minimq_broker.services.clock import now_ms


class PopClock:
    """A time of day that is read once and goes on by itself: a clock that is set meanwhile frees nothing.

    Args:
        not_before_ms: a time that is over, in ms since 1970: it does not go back behind what the log says.
    """

    def __init__(self, not_before_ms: int = 0) -> None:
        self._ahead_ms = max(now_ms(), not_before_ms) - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        """Return the time in ms since 1970."""
        return self._ahead_ms + time.monotonic_ns() // 1_000_000
