"""The heartbeats of one session, and the answers that tell how long ago the broker was known to be there: pure."""

from __future__ import annotations


class Heartbeats:
    """The heartbeats of one session. Times are seconds on any clock that does not go back.

    A broker answers each heartbeat with its number. The time of an answer is that of the heartbeat it names, so an
    answer that got lost makes none of the later ones look older than it is.

    Attributes:
        answered_at: when the latest request was sent of which it is known that the broker has got it.
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
