"""Coalesces calls, so that many viewers of one page cost the cluster as much as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds for which a call waits for an earlier one of its key: servers that hang must not add up.
_WAIT_S = 0.2
#: Calls that begin at once, and seconds after which one that has not ended lets the next begin: many threads that
#: compute would slow each other down, and those that wait for a server that hangs must hold nobody up.
_AT_ONCE, _TURN_S = 8, 0.2
#: Seconds for which a result is kept.
_KEPT_S = 5.0


@dataclass(eq=False, slots=True)
class _Flight:
    task: asyncio.Task[Any] | None = None
    #: None while it waits for an earlier call of its key.
    began_s: float | None = None


class SingleFlight:
    """Calls by key. Used on one event loop."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Begin within the block when few others compute, or wait for servers for a moment only."""
        await self._turns.acquire()
        ending = asyncio.get_running_loop().create_future()
        ending.add_done_callback(lambda _: self._turns.release())
        handle = asyncio.get_running_loop().call_later(_TURN_S, ending.cancel)
        try:
            yield
        finally:
            handle.cancel()
            ending.cancel()

    async def call(self, key: Hashable, make: Callable[[], Awaitable[T]], max_age_s: float = 0.0) -> T:
        """Return the result, or raise the error, of a call of this key that began no more than `max_age_s` ago.

        With 0 it begins after this call: all that come while another one is under way share the next.
        """
        now_s = asyncio.get_running_loop().time()
        flight, earlier = self._flights.get(key), None
        if flight is None or (flight.began_s is not None and now_s - flight.began_s > max_age_s):
            earlier = None if flight is None else flight.task
            flight = self._flights[key] = _Flight()
            flight.task = asyncio.create_task(self._run(key, flight, earlier, make))
            flight.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # callers may be gone
        assert flight.task is not None
        result: T = await asyncio.shield(flight.task)
        return result

    async def _run(
        self, key: Hashable, flight: _Flight, earlier: asyncio.Task[Any] | None, make: Callable[[], Awaitable[T]]
    ) -> T:
        if earlier is not None:
            await asyncio.wait([earlier], timeout=_WAIT_S)
        loop = asyncio.get_running_loop()
        flight.began_s = loop.time()
        try:
            return await make()
        finally:
            loop.call_later(_KEPT_S, self._forget, key, flight)

    def _forget(self, key: Hashable, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
