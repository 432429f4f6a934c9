"""A limit on the rate of events. Pure: time is an argument, in seconds of any clock that never goes back."""

from __future__ import annotations


class TokenBucket:
    """Lets something happen some times in a row, and then at a steady rate."""

    def __init__(self, burst: int, per_s: float, now: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = float(burst)
        self._at = now

    def take(self, now: float) -> bool:
        """Return whether it may happen once more now, and count that it does."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
