"""The retry policy: which error is worth another try, when that follows, and how long a try may take. Pure.

`at_master` carries it out for calls. What is tried for as long as a client lives waits for `PAUSE_S` each time.
"""

from __future__ import annotations

from minimq_common.errors import MiniMQError

#: Waits between two tries, in seconds: each is twice as long as the one before.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5
#: Wait before what has no end is tried again, in seconds.
PAUSE_S = 0.2
#: A broker that is not reached is tried again for this long, in seconds: one that has just come back needs a moment.
RECONNECT_S = 1.5
#: Each try gets a share of the time that is left: one part in so many. So a hung broker does not eat all of it, and the
#: first try least of all: another broker is mostly free, and a batch that was stored by then is not stored again.
_SHARES = (6, 3, 2, 1)
#: A try is given at least this long, however little is left, in seconds.
SHORTEST_TRY_S = 0.2
#: Waits of a batch before its second, third, ... try: the first goes elsewhere at once.
_BATCH_PAUSES_S = (0.0, 0.1, 0.3, 1.0)
#: Wait of a batch that was not tried, because no broker takes it.
_UNTRIED_PAUSE_S = 0.1


class RetrySchedule:
    """The decision whether there is another try. Times are seconds on one clock."""

    def __init__(self, timeout_s: float, now: float, option: str = "") -> None:
        self._timeout_s = timeout_s
        self._option = option
        self._give_up_at = now + timeout_s
        self._pause_s = _FIRST_PAUSE_S
        self._tries = 0
        self._answer: MiniMQError | None = None

    def left_s(self, now: float) -> float:
        """Return how many seconds are left."""
        return max(self._give_up_at - now, 0.0)

    def try_s(self, now: float) -> float:
        """Return how many seconds the next try may take, if it is to have a share of the time."""
        self._tries += 1
        return try_timeout_s(now, self._give_up_at, self._tries - 1)

    def pause_s(self, error: MiniMQError, now: float, *, again: bool | None = None) -> float:
        """Return how many seconds to wait before the next try, unless `again` tells that an error is worth none.

        The last try is at the end of the time. Then the error is raised; if it is no answer, an earlier answer.
        """
        if not (error.retriable if again is None else again):
            raise error
        self._answer = error if error.answered else self._answer
        left_s = self.left_s(now)
        if not left_s:
            shown, self._answer = self._answer or error, None  # who asks later on hears what is the matter then
            if not self._timeout_s and not self._option:
                raise shown
            raise after_waiting(shown, self._timeout_s, self._option) from None
        pause_s = min(max(self._pause_s, error.retry_after_s), left_s)
        self._pause_s = longer(self._pause_s)
        return pause_s


def longer(pause_s: float = 0.0) -> float:
    """Return how many seconds to wait after a wait of that long; the first if there was none."""
    return min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)


def try_timeout_s(now: float, deadline: float, tries: int) -> float:
    """Return how many seconds the next try may take, after so many tries: its share of the time left."""
    return max((deadline - now) / _SHARES[min(tries, len(_SHARES) - 1)], SHORTEST_TRY_S)


def batch_pause_s(error: MiniMQError, tries: int, *, bound: bool, elsewhere: bool) -> float | None:
    """Return how many seconds a batch waits for its next try, at its queue if bound, or elsewhere; None for none."""
    if not error.retriable and (bound or not error.refresh_route):
        return None
    pause_s = _BATCH_PAUSES_S[min(tries, len(_BATCH_PAUSES_S)) - 1] if tries else _UNTRIED_PAUSE_S
    return max(pause_s, error.retry_after_s) if bound or not elsewhere else pause_s


def after_waiting(error: MiniMQError, waited_s: float, option: str = "") -> MiniMQError:
    """Return an error that also says how long servers were waited for, and which option sets that, if it is given."""
    said = f", as {option} says" if option else ""
    return error.after_waiting(f"{round(waited_s, 2):g} s{said}")
