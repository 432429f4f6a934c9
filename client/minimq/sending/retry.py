"""The decision about a batch after a try that failed."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_common.errors import MiniMQError

#: Waits before the second, third, ... try: the first goes elsewhere at once.
_BACKOFF_S = (0.0, 0.1, 0.3, 1.0)
#: Wait of a batch that was not tried, because no broker takes it.
_NOWHERE_S = 0.1


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The batch fails."""

    reason: str
    hopeless: bool


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The batch is tried again."""

    #: Seconds to wait before.
    delay_s: float
    refresh_route: bool


def next_step(
    error: MiniMQError, *, tries: int, now: float, deadline: float, bound: bool, elsewhere: bool
) -> GiveUp | TryAgain:
    """Decide about a batch that is not stored. All times are seconds on one clock."""
    if not error.retriable and (bound or not error.refresh_route):
        return GiveUp("trying again does not help", hopeless=True)
    delay_s = _BACKOFF_S[min(tries, len(_BACKOFF_S)) - 1] if tries else _NOWHERE_S
    if bound or not elsewhere:
        delay_s = max(delay_s, error.retry_after_s)
    if now + delay_s >= deadline:
        return GiveUp(
            "no time is left" if now >= deadline else f"no time is left to wait {delay_s:g} s", hopeless=False
        )
    return TryAgain(delay_s, error.refresh_route)
