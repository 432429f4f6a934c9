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
    """Return what an attempt returns, which is repeated while servers are absent."""
    schedule = RetrySchedule(timeout_s, time.monotonic(), option)
    while True:
        try:
            return attempt(schedule.left_s(time.monotonic()))
        except MiniMQError as error:
            if only is not None and not only(error):
                raise
            pause_s = schedule.pause_s(error, time.monotonic())
        (wait or time.sleep)(pause_s)
