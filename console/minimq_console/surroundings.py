"""All that the pages of one console share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from minimq_common.errors import SystemBusy
from minimq_console.action_runs import MOST_UNDER_WAY
from minimq_console.body_decoder import Decode
from minimq_console.rendering import Rendering
from minimq_console.single_flight import SingleFlight

#: Threads that gather pages, and those that make their calls: a server that hangs holds one for a second or two.
_GATHERING, _CALLING = 48, 96
#: Threads beside these, with which programs read by the JSON API at once: they may wait longer than a page.
MOST_READS = 24
#: Streams of events at once: of pages that viewers share, and of new messages, which are read for each viewer.
MOST_STREAMS, MOST_TAILS = 1_000, 40


class Surroundings:
    """Things that the pages of one console share. Used on the event loop, but for the threads."""

    def __init__(self, rendering: Rendering, *, allow_changes: bool = False, decode: Decode | None = None) -> None:
        self.rendering = rendering
        self.decode = decode
        self.allow_changes = allow_changes
        self.gathering = ThreadPoolExecutor(_GATHERING + MOST_READS, "minimq-console-page")
        self.calling = ThreadPoolExecutor(_CALLING, "minimq-console-call")
        # Forms and the JSON API may each have so many under way: none of them waits for the others.
        self.acting = ThreadPoolExecutor(2 * MOST_UNDER_WAY, "minimq-console-action")
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.flights = SingleFlight()
        self._streams: dict[int, int] = {}

    def serve_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remember the event loop."""
        self._loop = loop

    def end_streams(self) -> None:
        """End all streams: the console ends. Thread-safe."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    @contextmanager
    def stream(self, most: int = MOST_STREAMS) -> Iterator[None]:
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

    async def pause(self, seconds: float) -> bool:
        """Wait; return True as soon as the console ends."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """End the threads; calls that are under way end by themselves."""
        self.gathering.shutdown(wait=False, cancel_futures=True)
        self.calling.shutdown(wait=False, cancel_futures=True)
        self.acting.shutdown(wait=False, cancel_futures=True)

    def wait_for_actions(self) -> None:
        """Wait until actions that were under way have ended; their connections were closed before that."""
        self.acting.shutdown(wait=True)
