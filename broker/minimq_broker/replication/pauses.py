"""The pauses of a slave before it tries its master again.

Pure: durations are arguments, in seconds.
"""

from __future__ import annotations

from enum import Enum

_FIRST_S = 0.05
#: Factor by which a stream has to outlast earlier failures before they are forgotten.
_LASTING_S = 10.0


class Break(Enum):
    """Why a try to follow ended, with the longest pause after it."""

    #: The master was not reached, or is not reached any more; once it is back it is found within this time.
    UNREACHED = 1.0, "unreached"
    #: The master answered with an error.
    REFUSED = 1.0, "refused"
    #: Something is wrong here: a full or damaged disk is seldom repaired sooner, and a try costs the master, too.
    OWN = 10.0, "own"

    def __init__(self, longest_s: float, _: str) -> None:
        self.longest_s = longest_s


class Pauses:
    """The pauses of one slave: each twice as long as the one before, until following has worked."""

    def __init__(self) -> None:
        self._latest_s = _FIRST_S

    def after(self, cause: Break, followed_s: float) -> float:
        """Return how long to wait after a try that has ended."""
        if followed_s > _LASTING_S or (followed_s and cause is Break.UNREACHED):
            self._latest_s = _FIRST_S
        else:
            self._latest_s = min(2 * self._latest_s, cause.longest_s)
        return self._latest_s
