"""The retry policy of calls and of batches: how long a try may take, and when the next one follows."""

from __future__ import annotations

from minimq_common.errors import MiniMQError

#: Waits between two tries, in seconds: each is twice as long as the one before.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5
#: Each try gets a share of the time that is left: one part in so many. So a hung broker does not eat all of it, and the
#: first try least of all: another broker is mostly free, and a batch that was stored by then is not stored again.
_SHARES = (6, 3, 2, 1)
#: A try is given at least this long, however little is left, in seconds.
_SHORTEST_TRY_S = 0.2
#: Waits of a batch before its second, third, ... try: the first goes elsewhere at once.
_BATCH_PAUSES_S = (0.0, 0.1, 0.3, 1.0)
#: Wait of a batch that was not tried, because no broker takes it.
_NOWHERE_S = 0.1


class RetrySchedule:
    """The decision whether there is another try. Times are seconds on one clock."""

    def __init__(self, timeout_s: float, now: float, option: str = "") -> None:
        self._timeout_s = timeout_s
        self._option = option
        self._give_up_at = now + timeout_s
        self._pause_s = _FIRST_PAUSE_S
        self._tries = 0

    def left_s(self, now: float) -> float:
        """Return how many seconds are left."""
        return max(self._give_up_at - now, 0.0)

    def try_s(self, now: float) -> float:
        """Return how many seconds the next try may take."""
        self._tries += 1
        return try_timeout_s(now, self._give_up_at, self._tries - 1)

    def pause_s(self, error: MiniMQError, now: float) -> float:
        """Return how many seconds to wait before the next try. The last try is at the end of the time."""
        if not error.retriable:
            raise error
        return self.pause_after_s(error, now)

    def pause_after_s(self, error: MiniMQError, now: float, shown: MiniMQError | None = None) -> float:
        """Do as `pause_s` for an error of any kind; at the end, `shown` is raised if it is given."""
        left_s = self.left_s(now)
        if not left_s:
            raise after_waiting(shown or error, self._timeout_s, self._option) from None
        pause_s = min(max(self._pause_s, error.retry_after_s), left_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s


def try_timeout_s(now: float, deadline: float, tries: int) -> float:
    """Return how many seconds the next try may take, after so many tries: its share of the time left."""
    return max((deadline - now) / _SHARES[min(tries, len(_SHARES) - 1)], _SHORTEST_TRY_S)


def batch_pause_s(error: MiniMQError, tries: int, *, bound: bool, elsewhere: bool) -> float | None:
    """Return how many seconds a batch waits for its next try, at its queue if bound, or elsewhere; None for none."""
    if not error.retriable and (bound or not error.refresh_route):
        return None
    pause_s = _BATCH_PAUSES_S[min(tries, len(_BATCH_PAUSES_S)) - 1] if tries else _NOWHERE_S
    return max(pause_s, error.retry_after_s) if bound or not elsewhere else pause_s


def after_waiting(error: MiniMQError, waited_s: float, option: str = "") -> MiniMQError:
    """Return an error that also says how long servers were waited for, and which option sets that, if it is given."""
    said = f", as {option} says" if option else ""
    return error.with_message(f"{error.message} (waited {round(waited_s, 2):g} s{said})")
