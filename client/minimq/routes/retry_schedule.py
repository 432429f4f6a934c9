"""The retry schedule of calls while servers are absent."""

from __future__ import annotations

from minimq_common.errors import MiniMQError

#: Waits between two tries, in seconds: each is twice as long as the one before.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5


class RetrySchedule:
    """The decision whether there is another try. Times are seconds on one clock."""

    def __init__(self, timeout_s: float, now: float, option: str = "") -> None:
        self._timeout_s = timeout_s
        self._option = option
        self._give_up_at = now + timeout_s
        self._pause_s = _FIRST_PAUSE_S

    def left_s(self, now: float) -> float:
        """Return how many seconds are left."""
        return max(self._give_up_at - now, 0.0)

    def pause_s(self, error: MiniMQError, now: float) -> float:
        """Return how many seconds to wait before the next try. The last try is at the end of the time."""
        if not error.retriable:
            raise error
        left_s = self.left_s(now)
        if not left_s:
            raise after_waiting(error, self._timeout_s, self._option) from None
        pause_s = min(max(self._pause_s, error.retry_after_s), left_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s


def after_waiting(error: MiniMQError, waited_s: float, option: str = "") -> MiniMQError:
    """Return an error that also says how long servers were waited for, and which option sets that, if it is given."""
    said = f", as {option} says" if option else ""
    return error.with_message(f"{error.message} (waited {waited_s:g} s{said})")
