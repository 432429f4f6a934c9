"""Carries out the retry policy.

`call_master` sends a request to the current master of a broker; `tried` repeats any other call; `with_retries` does the
same on a thread. When time is up, they raise the last error that is the answer of a server, else the last error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from minimq.connection.retry_schedule import MIN_ATTEMPT_S, RetrySchedule
from minimq_common.errors import DeadlineExceeded, MinimqError

T = TypeVar("T")


class Master(Protocol):
    async def find(self, limit_s: float) -> str:
        """Return its address, within `limit_s` seconds. Raises `Unavailable` if there is no master."""

    def failed(self, address: str, error: MinimqError) -> None:
        """Called after a failed attempt; `address` is empty if no master was found."""


async def call_master(
    master: Master,
    attempt: Callable[[str, float], Awaitable[T]],
    timeout_s: float,
    *,
    again: Callable[[str, MinimqError], bool] | None = None,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """Call `attempt` with the address of the master and a timeout in seconds; retry until it succeeds or time is up.

    `again` decides whether to retry after an error, instead of its `retriable` mark; it may raise another error. This
    runs on the event loop of the connection, or in the steps of a caller that passes its own `pause`.
    """
    schedule = RetrySchedule(timeout_s, time.monotonic())
    while True:
        address = ""
        begun_at = time.monotonic()
        limit_s = schedule.try_s(begun_at)
        try:
            address = await master.find(limit_s)
            return await attempt(address, max(begun_at + limit_s - time.monotonic(), 0.0))
        except MinimqError as failure:
            error = failure
        except TimeoutError:
            error = DeadlineExceeded(f"the broker at {address or '?'} gave no answer within {limit_s:.1f} s")
        master.failed(address, error)
        is_worth_it = None if again is None else again(address, error)
        await pause(schedule.pause_s(error, time.monotonic(), again=is_worth_it))


async def tried(
    attempt: Callable[[float], Awaitable[T]], timeout_s: float, *, only: type[MinimqError] = MinimqError
) -> T:
    """Call `attempt` with the seconds left; retry after retriable errors until time is up."""
    begun_at = time.monotonic()
    schedule: RetrySchedule | None = None
    left_s = timeout_s
    while True:
        try:
            return await attempt(max(left_s, MIN_ATTEMPT_S))
        except only as error:
            schedule = schedule or RetrySchedule(timeout_s, begun_at)
            pause_s = schedule.pause_s(error, time.monotonic())
        await asyncio.sleep(pause_s)
        left_s = schedule.left_s(time.monotonic())


def with_retries(
    attempt: Callable[[float], T],
    timeout_s: float,
    *,
    wait: Callable[[float], object] | None = None,
    option: str = "",
    only: Callable[[MinimqError], bool] | None = None,
) -> T:
    """Like `tried`, blocking. `only` decides which errors to retry; `option` names the timeout in the error."""
    schedule = RetrySchedule(timeout_s, time.monotonic(), option)
    while True:
        try:
            return attempt(schedule.left_s(time.monotonic()))
        except MinimqError as error:
            pause_s = schedule.pause_s(error, time.monotonic(), again=None if only is None else only(error))
        (wait or time.sleep)(pause_s)
