"""The backoff of a slave that retries to follow its master. Pure: durations are arguments, in seconds."""

from __future__ import annotations

from enum import Enum

_FIRST_S = 0.05
#: A stream that lasted longer resets the backoff.
_LASTING_S = 10.0


class Break(Enum):
    """Why following ended, with the maximum pause before the next attempt."""

    #: The master cannot be reached. Bounds the time to find it once it is back.
    UNREACHED = 1.0, "unreached"
    #: The master answered with an error.
    REJECTED = 1.0, "rejected"
    #: An error on this side, such as a full disk: it seldom goes away soon, and each attempt costs the master too.
    OWN = 10.0, "own"

    def __init__(self, longest_s: float, _: str) -> None:
        self.longest_s = longest_s


class FollowBackoff:
    """Exponential backoff of one slave, reset when following has worked."""

    def __init__(self) -> None:
        self._latest_s = _FIRST_S

    def after(self, cause: Break, followed_s: float) -> float:
        """Return the pause after an attempt that followed for `followed_s`."""
        if followed_s > _LASTING_S or (followed_s and cause is Break.UNREACHED):
            self._latest_s = _FIRST_S
        else:
            self._latest_s = min(2 * self._latest_s, cause.longest_s)
        return self._latest_s
