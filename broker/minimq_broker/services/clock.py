"""The time of day, and the clock of leases."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the time of day in ms since 1970."""
    return time.time_ns() // 1_000_000


def lease_clock() -> float:
    """Return seconds on a clock that includes sleep of the machine, if there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
