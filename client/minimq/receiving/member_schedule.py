"""The schedule of the rebalances of a member, and the heartbeats of its sessions: pure.

Times are seconds on any clock that does not go back.
"""

from __future__ import annotations


class RebalanceSchedule:
    """The times at which a member looks at the allocation: at once after a change, but not for every one of many."""

    def __init__(self, *, gap_s: float, interval_s: float, now: float) -> None:
        self._gap_s = gap_s
        self._interval_s = interval_s
        self._earliest = now
        self._due = now
        self._full_at = now + interval_s
        self.count = 0

    def want(self, at: float) -> None:
        """Ask for a round at that time, or before."""
        self._due = min(self._due, at)

    @property
    def due_at(self) -> float:
        """The time of the next round."""
        return max(self._due, self._earliest)

    def is_due(self, now: float) -> bool:
        """Tell whether a round is to begin."""
        return now >= self.due_at

    def begin(self, now: float) -> bool:
        """Begin a round; return whether it is one that is made though nothing may have happened."""
        self.count += 1
        full = now >= self._full_at
        if full:
            self._full_at = now + self._interval_s
        self._due = self._full_at
        self._earliest = now + self._gap_s
        return full


class Heartbeats:
    """The heartbeats of one session, and the answers that tell how long ago the broker was known to be there.

    A broker answers each heartbeat with its number. The time of an answer is that of the heartbeat it names, so an
    answer that got lost makes none of the later ones look older than it is.
    """

    def __init__(self) -> None:
        self.answered_at = 0.0
        self._number = 0
        #: When those without an answer were sent, by number, in their order.
        self._sent: dict[int, float] = {}

    def begin(self, now: float) -> None:
        """Start over with a new session; `answered_at` counts once there is an answer."""
        self._sent.clear()
        self.answered_at = now

    def send(self, now: float) -> int:
        """Return the number of a heartbeat that is sent now."""
        self._number += 1
        self._sent[self._number] = now
        return self._number

    def answered(self, number: int) -> None:
        """Take an answer to a heartbeat, 0 from a broker that does not name it: then it is one to the oldest."""
        number = number or next(iter(self._sent), 0)
        if number in self._sent:
            self.answered_at = self._sent[number]
            self._sent = {later: at for later, at in self._sent.items() if later > number}
