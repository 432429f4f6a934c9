"""A task on the event loop of a connection that does, one after the other, what any thread hands it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from minimq.connection.connection import Connection

Work = Callable[[], None]


class LoopWorker:
    """Carries work from any thread to one task on the event loop of a connection. Thread-safe."""

    def __init__(self, connection: Connection, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._connection = connection
        self._run = run
        self._over = threading.Event()
        # What follows belongs to the loop.
        self._work: deque[Work | None] = deque()
        self._added = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; on the loop."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._over.set())  # also if the connection ends before its first step

    def post(self, work: Work | None) -> None:
        """Have something done. Nothing happens once the connection is closed."""
        self._connection.call_soon(self._add, work)

    def close(self) -> None:
        """Let the task end when it has done what was posted before, and wait for that. Idempotent."""
        if self._task is not None:
            self.post(None)
            self._over.wait()

    # ---- for the task ---------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True if no work waits."""
        return not self._work

    async def next(self, timeout_s: float) -> Work | None:
        """Return the next work, some that does nothing when none came in time, None at the end."""
        if self._work:
            await asyncio.sleep(0)  # others on the loop have their turn
            return self._work.popleft()
        self._added.clear()
        timer = asyncio.get_running_loop().call_later(timeout_s, self._added.set)
        try:
            await self._added.wait()
        finally:
            timer.cancel()
        return self._work.popleft() if self._work else _nothing

    def _add(self, work: Work | None) -> None:
        self._work.append(work)
        self._added.set()


def _nothing() -> None:
    """Let the task look at the clock."""
