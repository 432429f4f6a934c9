"""Carries out the retry policy.

`tried` repeats a call on an event loop, `with_retries` on a thread; `call_master` repeats it at the current master of a
broker. When time is up, they raise the last error that is the answer of a server, else the last error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from minimq.connection.retry_schedule import MIN_ATTEMPT_S, RetrySchedule, is_retriable
from minimq_common.errors import DeadlineExceeded, MinimqError, SystemBusy

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
    again: Callable[[str, MinimqError], bool] = lambda _, error: error.retriable,
) -> T:
    """Call `attempt` with the address of the master and a timeout in seconds; retry until it succeeds or time is up.

    `again` decides whether to retry after an error, instead of its `retriable` mark; it may raise another error.
    """
    address = ""

    async def at_master(limit_s: float) -> T:
        nonlocal address
        address, begun_at = "", time.monotonic()
        try:
            address = await master.find(limit_s)
            return await attempt(address, max(begun_at + limit_s - time.monotonic(), 0.0))
        except TimeoutError:
            where = f"the broker at {address or '?'}"
            error: MinimqError = DeadlineExceeded(f"{where} gave no answer within {limit_s:.1f} s")
        except MinimqError as failure:
            error = failure
        master.failed(address, error)
        raise error

    return await tried(at_master, timeout_s, again=lambda error: again(address, error), shares=True)


async def tried(
    attempt: Callable[[float], Awaitable[T]],
    timeout_s: float,
    *,
    again: Callable[[MinimqError], bool] = is_retriable,
    shares: bool = False,
) -> T:
    """Call `attempt` with a timeout in seconds; retry until it succeeds or time is up.

    The timeout is the time left, or with `shares` the share of an attempt. `again` decides as for `call_master`.
    """
    schedule = RetrySchedule(timeout_s, time.monotonic(), again=again)
    while True:
        now = time.monotonic()
        try:
            return await attempt(schedule.try_s(now) if shares else max(schedule.left_s(now), MIN_ATTEMPT_S))
        except MinimqError as error:
            pause_s = schedule.pause_s(error, time.monotonic())
        await asyncio.sleep(pause_s)


def is_busy(error: MinimqError) -> bool:
    """Return whether a server asks for another attempt: see `again`."""
    return isinstance(error, SystemBusy) and error.retriable


def with_retries(
    attempt: Callable[[float], T],
    timeout_s: float,
    *,
    wait: Callable[[float], object] = lambda seconds: time.sleep(seconds),  # noqa: PLW0108 - tests replace `time`
    option: str = "",
    again: Callable[[MinimqError], bool] = is_retriable,
) -> T:
    """Like `tried`, blocking. `option` names the timeout in the error."""
    schedule = RetrySchedule(timeout_s, time.monotonic(), option, again)
    while True:
        try:
            return attempt(schedule.left_s(time.monotonic()))
        except MinimqError as error:
            pause_s = schedule.pause_s(error, time.monotonic())
        wait(pause_s)
