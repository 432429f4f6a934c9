"""The shared part of one console: templates, threads, and limits of what is live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from minimq_common.errors import SystemBusy
from minimq_console.action_runs import MOST_UNDER_WAY
from minimq_console.answers import Rendering
from minimq_console.bodies import Decode

#: Threads that gather pages, and those that make their calls: a server that hangs holds one for a second or two.
_GATHERING, _CALLING = 48, 96
#: Threads beside these, with which programs read by the JSON API at once: they may wait longer than a page.
MOST_READS = 24
#: Streams of events at once: of pages that viewers share, and of new messages, which are read for each viewer.
MOST_STREAMS, MOST_TAILS = 1_000, 40


class Console:
    """Bounds threads and streams of one console. Used on the event loop, but for the threads."""

    def __init__(self, rendering: Rendering, *, allow_changes: bool = False, decode: Decode | None = None) -> None:
        self.rendering = rendering
        self.decode = decode
        self.allow_changes = allow_changes
        self.gathering = ThreadPoolExecutor(_GATHERING + MOST_READS, "minimq-console-page")
        self.calling = ThreadPoolExecutor(_CALLING, "minimq-console-call")
        # Forms and the JSON API may each have so many under way: none of them waits for the others.
        self.acting = ThreadPoolExecutor(2 * MOST_UNDER_WAY, "minimq-console-action")
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
        """End all streams: the console ends. Thread-safe."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    def wait_for_actions(self) -> None:
        """Wait until actions that were under way have ended; their connections were closed before that."""
        self.acting.shutdown(wait=True)

    @contextmanager
    def stream(self, most: int) -> Iterator[None]:
        """Count a stream of events within the block, among those with the same limit. Raises `SystemBusy`."""
        if self._streams.get(most, 0) >= most:
            raise SystemBusy(f"{most} views are live already: close some of them, or reload by hand")
        self._streams[most] = self._streams.get(most, 0) + 1
        try:
            yield
        finally:
            self._streams[most] -= 1

    @property
    def is_stopping(self) -> bool:
        """True once the console ends."""
        return self._stopping.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait, but only until the console ends."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


# ---- Calls that many viewers share --------------------------------------------------------------------

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
