"""The clocks of a broker: for time stamps, leases, and the deletion of old messages."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from minimq_common.record_limit import ALWAYS_WRITTEN


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def lease_clock() -> float:
    """Return seconds of a monotonic clock, which includes time that the machine sleeps where possible."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


log = logging.getLogger(__name__)

#: File in the data directory with the time in ms since 1970.
FILE_NAME = "clock"
#: Smaller differences cause no warning.
TOLERANCE_MS = 60_000
_SAVE_INTERVAL_S = 60.0
#: After a larger jump, old data is kept. More than a wrong time zone, and less than the default retention.
MAX_JUMP_S = 24 * 3600.0
#: A clock that stays ahead for that long is right: a wrong one would have been corrected.
BELIEVED_AFTER_S = 24 * 3600.0
#: Mark behind the time in the file of a broker that was stopped while this clock followed the system clock.
_STOPPED = "stopped"


class DeletionClock:
    """The clock of retention. Protects data from a system clock that jumps ahead. Thread-safe.

    Starts at the time in the file, or else at that of the newest message, and advances with the monotonic clock.
    Follows the system clock unless that is ahead by more than `MAX_JUMP_S`. Follows it also after a clean stop,
    however long, and once it has stayed ahead for `BELIEVED_AFTER_S`.
    """

    def __init__(
        self,
        path: Path,
        newest_ms: Callable[[], int | None],
        *,
        clock_ms: Callable[[], int],
        steady_s: Callable[[], float],
    ) -> None:
        self._path, self._newest_ms = path, newest_ms
        self._clock_ms, self._steady_s = clock_ms, steady_s
        self._lock = threading.Lock()  # guards the fields below
        self._time_ms: int | None = None
        self._read_at_s = self._save_at_s = 0.0
        self._has_warned_of_stamps = False
        #: Seconds that the system clock has jumped ahead; 0 while this clock follows it.
        self.ahead_s = 0.0
        #: Steady time of that jump.
        self._jumped_at_s = 0.0

    def now_ms(self) -> int:
        """Return the time for the deletion of old data, in ms since 1970. Never later than the system clock."""
        with self._lock:
            steady_s, clock_ms = self._steady_s(), self._clock_ms()
            if self._time_ms is None:
                saved_ms, was_stopped = self._saved()
                expected_ms = clock_ms if was_stopped else saved_ms or self._newest_ms()
                if expected_ms is None:  # no messages, so nothing to delete
                    return clock_ms
            else:
                expected_ms = self._time_ms + round((steady_s - self._read_at_s) * 1000)
            ahead_s = (clock_ms - expected_ms) / 1000
            has_jumped = ahead_s > MAX_JUMP_S
            if has_jumped and abs(ahead_s - self.ahead_s) > MAX_JUMP_S:  # it has jumped now, or again
                self._jumped_at_s = steady_s
            has_jumped = has_jumped and steady_s - self._jumped_at_s < BELIEVED_AFTER_S
            self._tell(ahead_s if has_jumped else 0.0)
            self._time_ms, self._read_at_s = expected_ms if has_jumped else max(clock_ms, expected_ms), steady_s
            return min(self._time_ms, clock_ms)

    def kept_ms(self) -> int:
        """Return the same, and save it once a minute for the next start. Blocks, so not for an event loop."""
        now_ms = self.now_ms()
        if self._time_ms is not None and self._steady_s() >= self._save_at_s:
            self._save_at_s = self._steady_s() + _SAVE_INTERVAL_S
            self._warn_of_stamps()
            self._save(str(self._time_ms))
        return now_ms

    def stop(self) -> None:
        """Save that the broker is stopped. The next start believes the clock, unless it is ahead now. Blocks."""
        self.now_ms()
        if self._time_ms is not None:
            self._save(str(self._time_ms) if self.ahead_s else f"{self._time_ms} {_STOPPED}")

    def _save(self, text: str) -> None:
        with suppress(OSError):  # the next start then uses the newest message
            self._path.write_text(text, "ascii")

    def _saved(self) -> tuple[int | None, bool]:
        try:
            time_ms, _, mark = self._path.read_text("ascii").partition(" ")
            return (int(time_ms), bool(mark)) if mark in ("", _STOPPED) else (None, False)
        except (OSError, ValueError):
            return None, False

    def _tell(self, ahead_s: float) -> None:
        if ahead_s and not self.ahead_s:
            log.warning(
                "clock: jumped ahead, so nothing is deleted by age for a day; correct the clock within that time, or "
                "do nothing if it is right ahead_s=%d",
                ahead_s,
                extra=ALWAYS_WRITTEN,
            )
        elif self.ahead_s and not ahead_s:
            log.warning(
                "clock: followed again, since it has returned or stayed ahead for a day; messages are deleted by age",
                extra=ALWAYS_WRITTEN,
            )
        self.ahead_s = ahead_s

    def _warn_of_stamps(self) -> None:
        ahead_ms = (self._newest_ms() or 0) - self._clock_ms()
        if ahead_ms > TOLERANCE_MS and not self._has_warned_of_stamps:
            log.warning(
                "clock: the newest message is ahead of it, so new ones of its queue get that time and stay longer; "
                "correct the clock, or if it is right, use new queues (docs/storage.md, clocks that jump) ahead_s=%d",
                ahead_ms // 1000,
                extra=ALWAYS_WRITTEN,
            )
        self._has_warned_of_stamps = ahead_ms > TOLERANCE_MS
