"""Long work on an event loop, a slice at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Seconds of work after which everybody else gets a turn.
SLICE_S = 0.002
#: After a step that takes longer others have so much more time than that.
_REST = 3


class LoopShare:
    """The time that one kind of work takes of each round of the event loop. Lives on that loop.

    Work of one kind takes turns: whoever has much to do calls `turn` between its steps, within `async with`, and a
    thousand of them at the same time take no more of a round than one.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._began: float | None = None

    async def __aenter__(self) -> None:
        await self.begin()

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

    async def step(self, work: Callable[[], T]) -> T:
        """Do work that cannot be sliced, when it is its turn; the next one has to wait so that others get theirs."""
        await self.begin()
        began = time.perf_counter()
        try:
            return work()
        finally:
            self.rest(time.perf_counter() - began)

    async def begin(self) -> None:
        """Wait for a turn, which `rest` ends."""
        await self._lock.acquire()

    def rest(self, took_s: float) -> None:
        """End the turn, after work that takes so long."""
        if took_s > SLICE_S:
            asyncio.get_running_loop().call_later(_REST * took_s, self._lock.release)
        else:
            self._lock.release()

    def _begin_anew(self) -> None:
        self._began = None
