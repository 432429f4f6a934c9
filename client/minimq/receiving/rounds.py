"""When a member looks at the allocation of its group: at once after a change, but not for every one of many. Pure."""

from __future__ import annotations


class Rounds:
    """The times of rounds, in seconds on any clock that does not go back. Used by one thread.

    Args:
        gap_s: least time between two rounds: what happens meanwhile makes one round together.
        interval_s: time after which there is a round though nothing has happened.
        now: the present time.

    Attributes:
        count: how many rounds there were.
    """

    def __init__(self, *, gap_s: float, interval_s: float, now: float) -> None:
        self._gap_s = gap_s
        self._interval_s = interval_s
        self._earliest = now
        self._due = now
        self._full_at = now + interval_s
        self.count = 0

    def want(self, at: float) -> None:
        """There shall be a round at that time, or before."""
        self._due = min(self._due, at)

    @property
    def due_at(self) -> float:
        """When the next round is to begin."""
        return max(self._due, self._earliest)

    def is_due(self, now: float) -> bool:
        """Tell whether a round is to begin."""
        return now >= self.due_at

    def begin(self, now: float) -> bool:
        """A round begins. Returns whether it is one that is made though nothing may have happened."""
        self.count += 1
        full = now >= self._full_at
        if full:
            self._full_at = now + self._interval_s
        self._due = self._full_at
        self._earliest = now + self._gap_s
        return full
