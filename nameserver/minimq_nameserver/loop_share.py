"""Long work on an event loop, a slice at a time."""

from __future__ import annotations

import asyncio
import time

#: Seconds of work after which everybody else gets a turn.
SLICE_S = 0.002


class LoopShare:
    """The time that one kind of work takes of each round of the event loop. Lives on that loop.

    Work of one kind takes turns: whoever has much to do calls `turn` between its steps, within `async with`, and a
    thousand of them at the same time take no more of a round than one.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._began: float | None = None

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def over(self) -> bool:
        """True once the time of this round is used up; the round begins with the first question."""
        now = time.perf_counter()
        if self._began is None:
            self._began = now
            asyncio.get_running_loop().call_soon(self._begin_anew)
        return now - self._began > SLICE_S

    async def turn(self) -> None:
        """Let everybody else have a turn, if the time of this round is used up."""
        if self.over:
            await asyncio.sleep(0)

    def _begin_anew(self) -> None:
        self._began = None
