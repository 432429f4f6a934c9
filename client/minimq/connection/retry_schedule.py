"""The retry policy: which errors are retried, after which pause, and the timeout of each attempt. Pure.

`call_master` carries it out for calls. Loops that retry without a deadline wait `PAUSE_S` each time.
"""

from __future__ import annotations

from collections.abc import Callable

from minimq_common.errors import MinimqError, RejectedByProxy

#: Exponential backoff: the pause doubles from the first to the longest.
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 0.5
#: Pause of retries that have no deadline.
PAUSE_S = 0.2
#: Retries of an unreachable broker last this long: one that has just restarted needs a moment.
RECONNECT_S = 1.5
#: The attempts get 1/6, 1/3, 1/2, then all of the time left, so that a hung broker does not use it up. The first is the
#: shortest: another broker is mostly available, and a retry at the same broker never stores a batch twice.
_SHARES = (6, 3, 2, 1)
#: Minimum timeout of an attempt, even if less time is left.
MIN_ATTEMPT_S = 0.2
#: Pauses of a batch before its 2nd, 3rd, ... attempt; the 2nd goes to another broker at once.
_BATCH_PAUSES_S = (0.0, 0.1, 0.3, 1.0)
#: Pause of a batch that was not tried, as no broker accepts it.
_UNTRIED_PAUSE_S = 0.1
#: Attempts of a batch that a proxy rejects. Each has a new stream, as a limit may count all requests of a stream.
MAX_PROXY_ATTEMPTS = 4


def is_retriable(error: MinimqError) -> bool:
    return error.retriable


class RetrySchedule:
    """Decides about the attempts of one call. Times are seconds on one clock.

    `again` decides whether to retry after an error; it may raise another one. `option` names the timeout in the error.
    """

    def __init__(
        self, timeout_s: float, now: float, option: str = "", again: Callable[[MinimqError], bool] = is_retriable
    ) -> None:
        self._timeout_s = timeout_s
        self._option, self._again = option, again
        self._give_up_at = now + timeout_s
        self._pause_s = _FIRST_PAUSE_S
        self._attempts = 0
        self._answer: MinimqError | None = None

    def left_s(self, now: float) -> float:
        """Return the seconds until the deadline."""
        return max(self._give_up_at - now, 0.0)

    def try_s(self, now: float) -> float:
        """Return the timeout of the next attempt, its share of the time left."""
        self._attempts += 1
        return attempt_timeout_s(now, self._give_up_at, self._attempts - 1)

    def pause_s(self, error: MinimqError, now: float) -> float:
        """Return the pause in seconds before the next attempt. Raises `error` if it must not be retried.

        After the last attempt, which begins at the deadline, raises the last answer of a server, else `error`.
        """
        if not self._again(error):
            raise error
        self._answer = error if error.answered else self._answer
        left_s = self.left_s(now)
        if not left_s:
            shown, self._answer = self._answer or error, None  # a later call must get its own reason
            if not self._timeout_s and not self._option:
                raise shown
            raise after_waiting(shown, self._timeout_s, self._option) from None
        pause_s = min(max(self._pause_s, error.retry_after_s), left_s)
        self._pause_s = longer(self._pause_s)
        return pause_s


def longer(pause_s: float = 0.0) -> float:
    """Return the next pause of the backoff, in seconds; the first one after 0."""
    return min(max(2 * pause_s, _FIRST_PAUSE_S), _MAX_PAUSE_S)


def attempt_timeout_s(now: float, deadline: float, attempts: int) -> float:
    """Return the timeout in seconds of the attempt after `attempts` attempts: its share of the time left."""
    return max((deadline - now) / _SHARES[min(attempts, len(_SHARES) - 1)], MIN_ATTEMPT_S)


def batch_pause_s(error: MinimqError, attempts: int, *, bound: bool, elsewhere: bool) -> float | None:
    """Return the pause before a batch is retried; None if it fails. `elsewhere`: another healthy broker accepts it."""
    if not error.retriable and (bound or not error.refresh_route):
        return None
    if isinstance(error, RejectedByProxy) and attempts >= MAX_PROXY_ATTEMPTS:
        return None
    pause_s = _BATCH_PAUSES_S[min(attempts, len(_BATCH_PAUSES_S)) - 1] if attempts else _UNTRIED_PAUSE_S
    return max(pause_s, error.retry_after_s) if bound or not elsewhere else pause_s


def after_waiting(error: MinimqError, waited_s: float, option: str = "") -> MinimqError:
    """Return a copy of an error that also says how long the client waited, and which option sets that."""
    said = f", as {option} says" if option else ""
    return error.after_waiting(f"{round(waited_s, 2):g} s{said}")
