"""The shared part of one console: templates, threads, and limits of what is live."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from minimq_common.errors import SystemBusy
from minimq_console.action_runs import MOST_UNDER_WAY
from minimq_console.bodies import Decode
from minimq_console.rendering import Rendering
from minimq_console.single_flight import SingleFlight

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
