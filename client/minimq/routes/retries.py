"""Repeats calls while servers are absent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from minimq.routes.retry_schedule import RetrySchedule
from minimq_common.errors import MiniMQError

T = TypeVar("T")


def with_retries(
    attempt: Callable[[float], T],
    timeout_s: float,
    *,
    wait: Callable[[float], object] | None = None,
    option: str = "",
    only: Callable[[MiniMQError], bool] | None = None,
) -> T:
    """Return what an attempt returns, which is repeated while servers are absent.

    Args:
        attempt: takes the seconds that are left, which are 0 for the last one.
        timeout_s: seconds after which the failure of the latest attempt is raised.
        wait: waits that many seconds instead of `time.sleep`; what it raises ends everything.
        option: name of the option that sets `timeout_s`, for the error.
        only: tells which retriable errors are worth another try; all when None.

    Raises:
        MiniMQError: what the attempt raises; at once if that is not retriable.
    """
    schedule = RetrySchedule(timeout_s, time.monotonic(), option)
    while True:
        try:
            return attempt(schedule.left_s(time.monotonic()))
        except MiniMQError as error:
            if only is not None and not only(error):
                raise
            pause_s = schedule.pause_s(error, time.monotonic())
        (wait or time.sleep)(pause_s)
