"""A thread that waits for what the event loop of a connection does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from minimq.connection.connection import Connection
from minimq.connection.loop_thread import CLOSED
from minimq_common.errors import Closed

T = TypeVar("T")


class BlockingCall(Generic[T]):
    """A coroutine on the event loop, and one thread that waits for its end.

    Ctrl-C may come anywhere in that thread. So it shares no lock with the loop, as it would with a
    `concurrent.futures.Future`: an exception between the lock and its `with` block would leave the lock taken.

    Args:
        connection: has the loop.
        make: makes the coroutine; called on the loop.
    """

    def __init__(self, connection: Connection, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._connection = connection
        self._make = make
        self._over: SimpleQueue[asyncio.Task[T]] = SimpleQueue()
        self._task: asyncio.Task[T] | None = None  # belongs to the loop

    def begin(self) -> None:
        """Begin. Raises `Closed`."""
        self._connection.check_may_wait()
        if not self._connection.call_soon(self._begin):
            raise Closed(CLOSED)

    def result(self) -> T:
        """Wait for the end, and return the result. Raises what the coroutine raises, or `Closed`."""
        task = self._over.get()
        if task.cancelled():
            raise Closed(f"{CLOSED} while a call was under way")
        return task.result()

    def cancel(self) -> None:
        """End the coroutine. Does not wait for that."""
        self._connection.call_soon(self._cancel)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._make())
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # so that asyncio does not log it if nobody waits any more
        self._over.put(task)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
