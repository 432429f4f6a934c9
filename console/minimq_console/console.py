"""The shared state of one console: templates, thread pools, and limits of streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from minimq.local.access_file import AccessFile
from minimq_common.errors import SystemBusy
from minimq_console.action_runs import MAX_UNDER_WAY
from minimq_console.answers import Rendering
from minimq_console.bodies import Decode

#: Threads that gather pages, and threads for their calls, which a hanging server blocks for a second or two.
_GATHERING, _CALLING = 48, 96
#: Additional threads for reads of the JSON API, which may take longer than a page.
MAX_READS = 24
#: Maximum number of event streams: of pages that viewers share, and of new messages, which are read for each viewer.
MAX_STREAMS, MAX_TAILS = 1_000, 40


class Console:
    """Bounds the threads and streams of one console. Used on the event loop, except for the thread pools."""

    def __init__(
        self,
        rendering: Rendering,
        *,
        allow_changes: bool = False,
        decode: Decode | None = None,
        users: AccessFile | None = None,
    ) -> None:
        self.rendering = rendering
        self.users = users
        self.decode = decode
        self.allow_changes = allow_changes
        self.gathering = ThreadPoolExecutor(_GATHERING + MAX_READS, "minimq-console-page")
        self.calling = ThreadPoolExecutor(_CALLING, "minimq-console-call")
        # `MAX_UNDER_WAY` for forms, and as many for the JSON API: neither waits for the other.
        self.acting = ThreadPoolExecutor(2 * MAX_UNDER_WAY, "minimq-console-action")
        self.flights = SingleFlight()
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[int, int] = {}

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve on this event loop within the block; at its end, calls that are under way end by themselves."""
        self._loop = asyncio.get_running_loop()
        yield
        for threads in (self.gathering, self.calling, self.acting):
            threads.shutdown(wait=False, cancel_futures=True)

    def end_streams(self) -> None:
        """End all streams, since the console stops. Thread-safe."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    def wait_for_actions(self) -> None:
        """Wait until actions that are under way have ended. Call it after their connections were closed."""
        self.acting.shutdown(wait=True)

    @contextmanager
    def stream(self, most: int) -> Iterator[None]:
        """Count an event stream within the block. Raises `SystemBusy` if `most` streams with this limit are open."""
        if self._streams.get(most, 0) >= most:
            raise SystemBusy(f"{most} views are live already: close some of them, or reload by hand")
        self._streams[most] = self._streams.get(most, 0) + 1
        try:
            yield
        finally:
            self._streams[most] -= 1

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def pause(self, seconds: float) -> None:
        """Sleep, at most until the console stops."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


T = TypeVar("T")

#: Maximum seconds for which a call waits for an earlier one of its key: delays by hanging servers must not add up.
_WAIT_S = 0.2
#: Number of calls that have a turn at once, and seconds after which a call gives its turn up: many threads that compute
#: would slow each other down, and those that wait for a hanging server must not block others.
_AT_ONCE, _TURN_S = 8, 0.2
_RESULT_TTL_S = 5.0


@dataclass(eq=False, slots=True)
class _Flight:
    task: asyncio.Task[Any] | None = None
    #: None while it waits for an earlier call of its key.
    began_s: float | None = None


class SingleFlight:
    """Shares one call among all callers with the same key. Used on one event loop."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it within the block, for at most `_TURN_S`."""
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
        """Return the result, or raise the error, of a call of this key that began at most `max_age_s` ago."""
        now_s = asyncio.get_running_loop().time()
        flight, earlier = self._flights.get(key), None
        if flight is None or (flight.began_s is not None and now_s - flight.began_s > max_age_s):
            earlier = None if flight is None else flight.task
            flight = self._flights[key] = _Flight()
            flight.task = asyncio.create_task(self._run(key, flight, earlier, make))
            flight.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # all callers may be gone
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
            loop.call_later(_RESULT_TTL_S, self._forget, key, flight)

    def _forget(self, key: Hashable, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
