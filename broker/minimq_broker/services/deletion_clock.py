"""The clock for the deletion of old data, see `core/clock_doubt.py`: read, complained about, and kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from minimq_broker.core.clock_doubt import TOLERANCE_MS, ClockDoubt, ClockReading
from minimq_broker.store import clock_record
from minimq_broker.store.clock_record import ClockRecord
from minimq_common.errors import StoreError
from minimq_common.log_handler import ALWAYS_WRITTEN

log = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Seconds between two saves. A machine that ends in between has lost no more than that.
_SAVE_S = 60.0


class DeletionClock:
    """The time for the deletion of old data. Thread-safe."""

    def __init__(
        self,
        path: Path,
        hold_s: float,
        newest_ms: Callable[[], int | None],
        *,
        clock_ms: Callable[[], int],
        steady_s: Callable[[], float],
        boot_id: str,
    ) -> None:
        self._path = path
        self._hold_s = hold_s
        self._newest_ms = newest_ms
        self._clock_ms = clock_ms
        self._steady_s = steady_s
        self._boot_id = boot_id
        #: Protects all below.
        self._lock = threading.Lock()
        self._doubt: ClockDoubt | None = None
        self._save_at_s = 0.0
        self._told_until_s = 0.0
        #: There was no file, and the clock was not believed since.
        self._is_unrecorded = False
        self._has_told_of_stamps = False

    @property
    def ahead_s(self) -> float:
        """Seconds by which the untrusted clock of the machine is ahead."""
        doubt = self._doubt
        return doubt.suspect_ms / 1000 if doubt is not None else 0.0

    def now_ms(self) -> int:
        """Return the time for the deletion of old data, in ms since 1970."""
        with self._lock:
            doubt = self._doubt
            if doubt is None:
                doubt = self._doubt = self._begin()
            was_suspect = bool(doubt.suspect_ms)
            newest_ms = self._newest_ms() if doubt.time_ms is None else None
            steady_s = self._steady_s()
            now = doubt.read(ClockReading(self._clock_ms(), steady_s, newest_ms))
            self._tell(doubt, steady_s, was_suspect=was_suspect)
            self._is_unrecorded = self._is_unrecorded and doubt.ahead_ms > 0 and not doubt.idle_ms
            return now

    def kept_ms(self) -> int:
        """Return the same, and keep it for the next start now and then; not for an event loop."""
        now = self.now_ms()
        with self._lock:
            if self._doubt is None or self._doubt.time_ms is None or self._steady_s() < self._save_at_s:
                return now
            self._save_at_s = self._steady_s() + _SAVE_S
            self._tell_of_stamps()
            kept = ClockRecord(self._doubt.time_ms, self._steady_s(), self._boot_id, self._doubt.idle_ms)
            clock_record.save(self._path, kept)
        return now

    def _tell_of_stamps(self) -> None:
        ahead_ms = (self._newest_ms() or 0) - self._clock_ms()
        if ahead_ms > TOLERANCE_MS and not self._has_told_of_stamps:
            log.warning(
                "clock: the newest message is ahead of it, so new ones of its queue get that time and stay longer; set "
                "the clock right, or if it is, go on with new queues (docs/storage.md, clocks that jump) ahead_s=%d",
                ahead_ms // 1000,
                extra=ALWAYS_WRITTEN,
            )
        self._has_told_of_stamps = ahead_ms > TOLERANCE_MS

    def _tell(self, doubt: ClockDoubt, steady_s: float, *, was_suspect: bool) -> None:
        if doubt.went_back_ms:
            log.warning(
                "clock: it went back, and old data is kept that much longer; make sure that it is right seconds=%d",
                doubt.went_back_ms // 1000,
                extra=ALWAYS_WRITTEN,
            )
        if doubt.suspect_ms and doubt.believed_at_s != self._told_until_s:
            self._told_until_s = doubt.believed_at_s
            log.warning(
                "clock: %s, and nothing is deleted by that for a while; set it right, or if it is, "
                "restart with --clock-hold 0 ahead_s=%d wait_s=%d",
                "there was no record of the time, and it is ahead of the newest message"
                if self._is_unrecorded
                else "it has jumped ahead",
                doubt.suspect_ms // 1000,
                doubt.believed_at_s - steady_s,
                extra=ALWAYS_WRITTEN,
            )
        elif was_suspect and not doubt.suspect_ms:
            log.warning("clock: it is trusted again for the deletion of old data", extra=ALWAYS_WRITTEN)

    # ---- over a start ---------------------------------------------------------------------------

    def _begin(self) -> ClockDoubt:
        try:
            kept = clock_record.load(self._path)
        except StoreError as error:
            log.warning("clock: goes by the newest message: %s", error.message)
            return ClockDoubt(self._hold_s)
        if kept is None:
            self._is_unrecorded = True
            return ClockDoubt(self._hold_s)
        is_same_run = kept.boot_id == self._boot_id != ""
        passed_s = self._steady_s() - kept.steady_s if is_same_run else 0.0
        return ClockDoubt(self._hold_s, kept.time_ms + round(1000 * max(passed_s, 0.0)), kept.idle_ms)


def boot_id() -> str:
    """Return an id of this boot of the machine; empty when nothing does."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
