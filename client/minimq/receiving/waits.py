"""The ways in which a consumer waits: the plain one blocks its thread, that of asyncio suspends its task.

What a consumer does is written once, as coroutines that wait through one of these. Those of a plain consumer never
suspend, so `complete` runs them to their end as calls. Whoever is interrupted abandons the wait alone: what it waits
for goes on on the event loop of the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from minimq.connection.client import ClusterClient
from minimq.connection.loop_thread import CLOSED
from minimq_common.errors import Closed

T = TypeVar("T")

#: Begins something on the event loop of the connection, which calls back when it is over.
Begin = Callable[[Callable[[], None]], object]


class Waits(Protocol):
    """A way to wait."""

    async def result(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a coroutine that runs on the event loop of the connection; see `ClusterClient`."""

    async def told(self, begin: Begin, timeout_s: float) -> bool:
        """Have something begun on that loop, and return whether it was over in time."""

    async def pause(self) -> None:
        """Let others of the same event loop run, amid what takes long."""

    async def end(self, close: Callable[[], None]) -> None:
        """Call a function that ends threads and waits for them."""


class BlockingWaits:
    """Blocks the thread that calls."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def result(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Block until the result is there."""
        return self._client.wait(make)

    async def told(self, begin: Begin, timeout_s: float) -> bool:
        """Block until it is over."""
        over: SimpleQueue[None] = SimpleQueue()
        if not self._client.connection.call_soon(begin, lambda: over.put(None)):
            raise Closed(CLOSED)
        try:
            over.get(timeout=timeout_s)
        except Empty:
            return False
        return True

    async def pause(self) -> None:
        """Go on: nobody else runs on this thread."""

    async def end(self, close: Callable[[], None]) -> None:
        """Call the function."""
        close()


class TaskWaits:
    """Suspends the task that calls, on the user's event loop. Nothing is lost when that is cancelled."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def result(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the result. What has begun goes on if the task is cancelled."""
        return await self._client.result(make)

    async def told(self, begin: Begin, timeout_s: float) -> bool:
        """Wait until it is over."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[bool] = loop.create_future()

        def finish(*, result: bool) -> None:
            if not over.done():
                over.set_result(result)

        tell = partial(self._client.user_loop().call, partial(finish, result=True))
        if not self._client.connection.call_soon(begin, tell):
            raise Closed(CLOSED)
        timer = loop.call_later(timeout_s, partial(finish, result=False))
        try:
            return await over
        finally:
            timer.cancel()

    async def pause(self) -> None:
        """Let other tasks run."""
        await asyncio.sleep(0)

    async def end(self, close: Callable[[], None]) -> None:
        """Call the function on a thread that is gone when this returns."""
        with ThreadPoolExecutor(1, "minimq-aio-closing") as thread:
            await asyncio.get_running_loop().run_in_executor(thread, close)


def complete(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine that waits by `BlockingWaits`, and so never suspends, to its end; return its result."""
    work = make()
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        work.close()
    raise RuntimeError("a blocking call was suspended")
