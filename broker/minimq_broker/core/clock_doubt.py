"""The time by which old data is deleted: that of the clock, unless it jumped ahead and nothing confirms that."""

from __future__ import annotations

from dataclasses import dataclass

#: Clocks are set right by so much without a word, in ms.
TOLERANCE_MS = 60_000
#: So long ago the newest message may be, where nothing else tells the time, before the clock is suspected, in ms.
IDLE_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The knowledge of a broker of the time."""

    #: The time of day in ms since 1970, as the machine tells it.
    clock_ms: int
    #: Seconds on a clock that nobody sets.
    steady_s: float
    #: When the newest message was stored; None when there is none.
    newest_ms: int | None = None


class ClockDoubt:
    """Tells the time by which old data may be deleted. What cannot be undone does not follow a jump of the clock.

    That time goes on with the steady clock. After a start it goes on from the time that was told last before the stop,
    or else from the newest message. A clock that is ahead of it is believed once it has stayed so for a while; one that
    is behind is believed at once, as that deletes less.
    """

    def __init__(self, hold_s: float, known_ms: int | None = None, idle_ms: int = 0) -> None:
        self._hold_s = hold_s
        self.time_ms = known_ms
        self.idle_ms = idle_ms
        self.ahead_ms = 0
        self.believed_at_s = 0.0
        self.went_back_ms = 0
        self._read_at_s: float | None = None

    @property
    def suspect_ms(self) -> int:
        """By how much the clock is ahead for no reason that anybody knows; nothing is deleted by the rest either."""
        return self.ahead_ms if abs(self.ahead_ms - self.idle_ms) > TOLERANCE_MS else 0

    def read(self, now: ClockReading) -> int:
        """Return the time by which old data may be deleted, in ms since 1970: never later than the clock."""
        self.went_back_ms = 0
        expected = self._expected(now)
        if expected is None:  # there is nothing that could be deleted
            return now.clock_ms
        ahead = now.clock_ms - expected
        if self.time_ms is None and ahead <= IDLE_MS:
            self.idle_ms = ahead
        if ahead < -TOLERANCE_MS:
            self.went_back_ms = -ahead
        if ahead <= TOLERANCE_MS:
            return self._believe(now)
        if not self.ahead_ms or abs(ahead - self.ahead_ms) > TOLERANCE_MS:
            self.believed_at_s = now.steady_s + self._hold_s  # it has jumped, or once more
        self.ahead_ms = ahead
        if now.steady_s >= self.believed_at_s:
            return self._believe(now)
        self.time_ms = expected
        return expected

    def _expected(self, now: ClockReading) -> int | None:
        before, self._read_at_s = self._read_at_s, now.steady_s
        if self.time_ms is None:
            return now.newest_ms
        return self.time_ms + (round((now.steady_s - before) * 1000) if before is not None else 0)

    def _believe(self, now: ClockReading) -> int:
        self.ahead_ms = self.idle_ms = 0
        self.time_ms = now.clock_ms
        return now.clock_ms
