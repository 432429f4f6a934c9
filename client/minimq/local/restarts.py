"""Delays before a failed server is restarted."""

from __future__ import annotations


class Restarts:
    """The waits before the starts of one server: short at first, longer each time it ends soon again."""

    def __init__(self, *, first_s: float = 1.0, most_s: float = 30.0, calm_s: float = 60.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._calm_s = calm_s
        self._wait_s = 0.0
        self._started_at = float("-inf")

    def started(self, now: float) -> None:
        """Note that the server was started."""
        self._started_at = now

    def ended(self, now: float) -> float:
        """Return how many seconds to wait before a server that has ended is started."""
        soon = now - self._started_at < self._calm_s
        self._wait_s = min(2 * self._wait_s, self._most_s) if soon and self._wait_s else self._first_s
        return self._wait_s
