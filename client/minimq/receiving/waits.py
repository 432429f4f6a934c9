"""The ways in which a consumer waits: the plain one blocks its thread, that of asyncio suspends its task.

What a consumer does is written once, as coroutines that wait through one of these. Those of a plain consumer never
suspend, so `complete` runs them to their end as calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from minimq.connection.client import ClusterClient
from minimq.receiving.hand_out import HandOut
from minimq.receiving.received import ReceivedMessage

T = TypeVar("T")


class Waits(Protocol):
    """A way to wait."""

    async def result(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a coroutine that runs on the event loop of the connection; see `ClusterClient`."""

    async def take(self, hand_out: HandOut, max_messages: int, timeout_s: float) -> list[ReceivedMessage]:
        """Return messages as `HandOut.take`."""

    async def end(self, close: Callable[[], None]) -> None:
        """Call a function that ends threads and waits for them."""


class BlockingWaits:
    """Blocks the thread that calls."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def result(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Block until the result is there."""
        return self._client.wait(make)

    async def take(self, hand_out: HandOut, max_messages: int, timeout_s: float) -> list[ReceivedMessage]:
        """Block until there are messages."""
        return hand_out.take(max_messages, timeout_s)

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

    async def take(self, hand_out: HandOut, max_messages: int, timeout_s: float) -> list[ReceivedMessage]:
        """Wait until there are messages. What is taken is returned at once: no cancellation comes between."""
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + timeout_s
        while True:
            changed: asyncio.Future[None] = loop.create_future()

            def wake(changed: asyncio.Future[None] = changed) -> None:
                with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                    loop.call_soon_threadsafe(_finish, changed)

            messages = hand_out.look(max_messages, wake)
            left_s = deadline - time.monotonic()
            if messages is not None or left_s <= 0:
                return messages or []
            timer = loop.call_later(left_s, _finish, changed)
            try:
                await changed
            finally:
                timer.cancel()

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


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
