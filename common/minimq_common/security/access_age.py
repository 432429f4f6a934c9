"""The age of a copy of users and rules: the time for which no other server has said that it has none newer. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable


class AccessAge:
    """The age of the users and rules of a server, which is bounded.

    Changed on one event loop; any thread may read it.
    """

    def __init__(self, max_s: float, now_s: Callable[[], float]) -> None:
        self._max_s = max_s
        self._now_s = now_s
        self._in_touch: set[object] = set()
        self._lost_at = -math.inf  # after a start nobody knows the age of what is on disk

    @property
    def seconds(self) -> float:
        """The age: 0 while in touch with another server, infinite from a start until then."""
        return 0.0 if self._in_touch else self._now_s() - self._lost_at

    @property
    def refusal(self) -> str:
        """The reason why users may not be served; empty if they may."""
        seconds = self.seconds
        if seconds <= self._max_s:
            return ""
        since = "since its start" if math.isinf(seconds) else f"for {seconds:.0f} s"
        return (
            f"users and rules may have changed without this server: it has not been in touch with others {since}, "
            f"and --access-max-age is {self._max_s:g} s; see that brokers and name servers reach each other"
        )

    def agreed(self, talk: object) -> None:
        """Note that another server has nothing newer, and that it would say so if it had."""
        self._in_touch.add(talk)

    def lost(self, talk: object) -> None:
        """Note that the connection has ended."""
        if talk in self._in_touch:
            self._in_touch.remove(talk)
            self._lost_at = self._now_s()
