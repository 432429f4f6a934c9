"""The clock by which a broker deletes what is old, see `core/clock_doubt.py`: read, complained about, and kept."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import google_crc32c

from minimq_broker.core.clock_doubt import ClockDoubt, ClockReading
from minimq_common.log_handler import ALWAYS_WRITTEN

log = logging.getLogger(__name__)

#: In the data directory. The time that was told last, the steady clock at that time, and the start of the machine that
#: the steady clock counts from; then the checksum of all that.
FILE_NAME = "clock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Seconds between two saves. A machine that ends in between has lost no more than that.
_SAVE_S = 60.0


class DeletionClock:
    """Tells the time by which old data may be deleted. Thread-safe.

    Args:
        path: the file that it is kept in over a start. It is read at the first question.
        hold_s: seconds until a clock that has jumped ahead is believed.
        newest_ms: returns when the newest message was stored, in ms since 1970; None when there is none.
        clock_ms: the time of day in ms since 1970.
        steady_s: seconds on a clock that nobody sets, and which goes on while the machine sleeps.
        boot_id: what it counts from; empty when that is not known.
    """

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

    @property
    def ahead_s(self) -> float:
        """Seconds by which the clock of the machine is ahead without being believed."""
        doubt = self._doubt
        return doubt.ahead_ms / 1000 if doubt is not None else 0.0

    def now_ms(self) -> int:
        """Return the time by which old data may be deleted, in ms since 1970."""
        with self._lock:
            doubt = self._doubt
            if doubt is None:
                doubt = self._doubt = ClockDoubt(self._hold_s, self._load())
            was_ahead = doubt.ahead_ms
            newest_ms = self._newest_ms() if doubt.time_ms is None else None
            steady_s = self._steady_s()
            now = doubt.read(ClockReading(self._clock_ms(), steady_s, newest_ms))
            self._tell(doubt, was_ahead, steady_s)
            self._is_unrecorded = self._is_unrecorded and doubt.ahead_ms > 0
            return now

    def kept_ms(self) -> int:
        """Return the same, and keep it for the next start now and then; not for an event loop."""
        now = self.now_ms()
        with self._lock:
            if self._doubt is None or self._doubt.time_ms is None or self._steady_s() < self._save_at_s:
                return now
            self._save_at_s = self._steady_s() + _SAVE_S
            self._save(self._doubt.time_ms)
        return now

    def _tell(self, doubt: ClockDoubt, was_ahead: int, steady_s: float) -> None:
        if doubt.went_back_ms:
            log.warning(
                "clock: it went back, and what is old is kept so much longer; see to it that it is right seconds=%d",
                doubt.went_back_ms // 1000,
                extra=ALWAYS_WRITTEN,
            )
        if doubt.ahead_ms and doubt.believed_at_s != self._told_until_s:
            self._told_until_s = doubt.believed_at_s
            log.warning(
                "clock: %s, and nothing is deleted by that for a while; set it right, or if it is, "
                "restart with --clock-hold 0 ahead_s=%d wait_s=%d",
                "there was no record of the time, and it is ahead of the newest message"
                if self._is_unrecorded
                else "it has jumped ahead",
                doubt.ahead_ms // 1000,
                doubt.believed_at_s - steady_s,
                extra=ALWAYS_WRITTEN,
            )
        elif was_ahead and not doubt.ahead_ms:
            log.warning("clock: what is old is deleted by it again", extra=ALWAYS_WRITTEN)

    # ---- over a start ---------------------------------------------------------------------------

    def _load(self) -> int | None:
        """Return the time that was kept, with what has passed since if the machine was not started anew."""
        try:
            text, _, crc = self._path.read_text("ascii").rpartition(" ")
            if int(crc, 16) != google_crc32c.value(text.encode()):
                raise ValueError("its checksum does not match")
            time_ms, steady_s, boot_id = text.split(" ")
            passed_s = self._steady_s() - float(steady_s) if boot_id == self._boot_id else 0.0
            return int(time_ms) + round(1000 * max(passed_s, 0.0))
        except FileNotFoundError:
            self._is_unrecorded = True
            return None
        except (OSError, ValueError) as error:
            log.warning("clock: goes by the newest message path=%s error=%s", self._path, error)
            return None

    def _save(self, time_ms: int) -> None:
        text = f"{time_ms} {self._steady_s():.3f} {self._boot_id or '-'}"
        new = self._path.with_name(f"{FILE_NAME}.new")
        try:
            new.write_text(f"{text} {google_crc32c.value(text.encode()):08x}", "ascii")
            new.replace(self._path)
        except OSError as error:  # on a full disk, for one: the next start knows less
            log.debug("clock: not kept path=%s error=%s", self._path, error)
            with contextlib.suppress(OSError):
                new.unlink()


def boot_id() -> str:
    """Return what tells this run of the machine from others; empty when nothing does."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""
