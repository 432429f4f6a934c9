"""Long work on an event loop, a slice at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Seconds of work after which everybody else gets a turn.
SLICE_S = 0.002
#: Rounds of the loop that others have between two slices. A call takes that many from its bytes to its answer at most,
#: so that it waits for one slice, and not for one in each round.
ROUNDS = 5
#: After a step that takes longer others have so much more time than that.
_REST = 3


class LoopShare:
    """The time that one kind of work takes of the event loop. Lives on that loop.

    Work of one kind takes turns: whoever has much to do calls `turn` between its steps, within `async with`, and a
    thousand of them at the same time take no more than one.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._used_s = 0.0  # by all who had the turn, since others had theirs
        self._since = 0.0

    async def __aenter__(self) -> None:
        await self.begin()
        self._since = time.perf_counter()

    async def __aexit__(self, *_: object) -> None:
        self._release_after(ROUNDS if self._is_over() else 0)

    async def turn(self) -> None:
        """Let everybody else have a turn, if the time of this slice is used up."""
        if self._is_over():
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
            self._since = time.perf_counter()

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

    def _is_over(self) -> bool:
        now = time.perf_counter()
        self._used_s += now - self._since
        self._since = now
        if self._used_s <= SLICE_S:
            return False
        self._used_s = 0.0
        return True

    def _release_after(self, rounds: int) -> None:
        if rounds:
            asyncio.get_running_loop().call_soon(self._release_after, rounds - 1)
        else:
            self._lock.release()
