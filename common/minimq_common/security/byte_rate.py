"""The bytes that one user may send to a server, or get from it, in a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

#: What a user has not taken for that long is added to what comes next, in seconds.
_SAVED_S = 1.0


class ByteRate:
    """A bound for the bytes of all streams of one user together, in one direction. Lives on one event loop.

    Whoever moves bytes waits until earlier ones are paid for, and then owes these: so a message larger than the rate
    passes too, and the next one waits longer.
    """

    def __init__(self, bytes_per_s: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_s = bytes_per_s
        self.waited_s = 0.0
        self._clock = clock
        self._paid_at = clock() - _SAVED_S  # when all that was moved is paid for

    def change(self, bytes_per_s: int) -> None:
        """Go by another rate from now on; what is owed is forgotten."""
        if bytes_per_s != self.bytes_per_s:
            self.bytes_per_s = bytes_per_s
            self._paid_at = self._clock() - _SAVED_S

    def owes_s(self) -> float:
        """Return for how long nothing may be moved, in seconds."""
        return max(0.0, self._paid_at - self._clock())

    def moved(self, size: int) -> None:
        """Count bytes that were moved."""
        if self.bytes_per_s:
            self._paid_at = max(self._paid_at, self._clock() - _SAVED_S) + size / self.bytes_per_s

    async def turn(self) -> None:
        """Wait until something may be moved."""
        while owed_s := min(self.owes_s(), _SAVED_S):  # the rate may change meanwhile
            self.waited_s += owed_s
            await asyncio.sleep(owed_s)
