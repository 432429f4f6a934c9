"""Carries out the retry policy: a request for the master of a broker goes, by `at_master`, to whichever server that is.

Any other call is made by `tried`, and in a thread by `with_retries`. The error at the end is that of the last try; if
that had no answer, an answer of an earlier one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from minimq.connection.loop_calls import LoopStep
from minimq.connection.loop_thread import true_time
from minimq.connection.retry_schedule import SHORTEST_TRY_S, RetrySchedule
from minimq_common.errors import DeadlineExceeded, MiniMQError, Unavailable

if TYPE_CHECKING:
    from minimq.connection.client import ClusterClient

T = TypeVar("T")


class Master(Protocol):
    """The master of a broker, wherever that is."""

    async def find(self, limit_s: float) -> str:
        """Return its present address; look for at most `limit_s`. Raises `Unavailable` if there is none."""

    def failed(self, address: str, error: MiniMQError) -> None:
        """Note that a try has failed, before the next one; the address is empty if it was not found."""


class RoutedMaster(NamedTuple):
    """The master of a broker by the route of a topic, which is asked for again when an error says that it is old."""

    client: ClusterClient
    topic: str
    broker_name: str

    async def find(self, limit_s: float) -> str:
        """Do as `Master.find`, on any thread or event loop. Raises as `RouteCache.find` as well."""
        routes, limit_s = self.client.routes, min(limit_s, self.client.timeout_s)
        find = partial(routes.find, self.topic, limit_s)
        route = routes.known(self.topic) or await LoopStep(self.client, find)
        address = route.master_of(self.broker_name)
        if address is None:
            raise Unavailable(f"no name server knows a master of broker {self.broker_name} now")
        return address

    def failed(self, address: str, error: MiniMQError) -> None:
        """Have the broker probed, or its route asked for."""
        if address:
            self.client.connection.health.failed(address, error)
        if error.refresh_route:
            self.client.routes.refresh_soon(self.topic)


async def at_master(
    master: Master,
    attempt: Callable[[str, float], Awaitable[T]],
    timeout_s: float,
    *,
    again: Callable[[str, MiniMQError], bool] | None = None,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """Return the result of an attempt, which gets the address of the master and the seconds that are left for it.

    `again` tells whether an error is worth another try, and may raise another one. It runs where its parts do: on the
    event loop of the connection, or in the steps of a caller, who gives a `pause` of his own.
    """
    schedule = RetrySchedule(timeout_s, true_time())
    while True:
        address = ""
        begun_at = true_time()
        limit_s = schedule.try_s(begun_at)
        try:
            address = await master.find(limit_s)
            return await attempt(address, max(begun_at + limit_s - true_time(), 0.0))
        except MiniMQError as failure:
            error = failure
        except TimeoutError:
            error = DeadlineExceeded(f"the broker at {address or '?'} gave no answer within {limit_s:.1f} s")
        master.failed(address, error)
        is_worth_it = None if again is None else again(address, error)
        await pause(schedule.pause_s(error, true_time(), again=is_worth_it))


async def tried(
    attempt: Callable[[float], Awaitable[T]], timeout_s: float, *, only: type[MiniMQError] = MiniMQError
) -> T:
    """Return what an attempt returns, which is given the seconds left; repeat it while servers are absent.

    With `only`, it is repeated after such errors alone.
    """
    begun_at = time.monotonic()
    schedule: RetrySchedule | None = None
    left_s = timeout_s
    while True:
        try:
            return await attempt(max(left_s, SHORTEST_TRY_S))
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
    only: Callable[[MiniMQError], bool] | None = None,
) -> T:
    """Do as `tried`, in a thread; `only` tells which errors are worth another try."""
    schedule = RetrySchedule(timeout_s, time.monotonic(), option)
    while True:
        try:
            return attempt(schedule.left_s(time.monotonic()))
        except MiniMQError as error:
            pause_s = schedule.pause_s(error, time.monotonic(), again=None if only is None else only(error))
        (wait or time.sleep)(pause_s)
