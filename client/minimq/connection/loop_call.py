"""Calls that run on the event loop of a connection while others wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, TypeVarTuple, Unpack

from minimq.connection.connection import Connection
from minimq.connection.loop_thread import CLOSED
from minimq_common.errors import Closed

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LoopCall(Generic[T]):
    """A coroutine on the event loop of a connection, whose end is told to whoever waits for it.

    Ctrl-C may come anywhere in a thread that waits. So it shares no lock with the loop, as it would with a
    `concurrent.futures.Future`: an exception between the lock and its `with` block would leave the lock taken.
    """

    def __init__(
        self,
        connection: Connection,
        make: Callable[[], Coroutine[Any, Any, T]],
        over: Callable[[asyncio.Task[T]], object],
    ) -> None:
        self._connection = connection
        self._make = make
        self._over = over
        self._task: asyncio.Task[T] | None = None  # belongs to the loop

    def begin(self) -> None:
        """Begin. Raises `Closed`."""
        self._connection.check_may_wait()
        if not self._connection.call_soon(self._begin):
            raise Closed(CLOSED)

    def cancel(self) -> None:
        """End the coroutine. Does not wait for that."""
        self._connection.call_soon(self._cancel)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._end)

    async def _run(self) -> T:
        return await self._make()  # whatever that raises is told, and leaves nobody waiting

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # so that asyncio does not log it if nobody waits any more
        self._over(task)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def result_of(task: asyncio.Task[T]) -> T:
    """Return the result of a call that has ended. Raises what the coroutine has raised, or `Closed`."""
    if task.cancelled():
        raise Closed(f"{CLOSED} while a call was under way")
    return task.result()


def as_coroutine(function: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> Callable[[], Coroutine[Any, Any, T]]:
    """Return a maker of a coroutine that calls a function, which must not block."""

    async def call() -> T:
        return function(*arguments)

    return call
