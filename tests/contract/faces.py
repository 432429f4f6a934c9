"""Clients of one face, blocking or asyncio, which scenarios call in the same way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import minimq
from minimq import aio
from support.loop_thread import LoopThread

#: Bound of one call, for faults: no scenario waits as long.
CALL_S = 120.0


class Blocking:
    """Makes the clients for threads."""

    name = "blocking"

    def make(self, client: str, *args: Any, **options: Any) -> Any:
        return getattr(minimq, client)(*args, **options)

    def listener(self, decide: Callable[[list[Any]], Future[Any]]) -> Callable[..., Any]:
        """Make a listener that returns what is decided later."""
        return lambda messages: decide(messages).result()


class Asyncio:
    """Makes the clients for asyncio, on a loop in a thread; each call returns when its coroutine has ended."""

    name = "asyncio"

    def __init__(self) -> None:
        self.loop = LoopThread()

    def make(self, client: str, *args: Any, **options: Any) -> Any:
        return _Awaited(self.loop, self.loop.call(lambda: getattr(aio, client)(*args, **options)))

    def listener(self, decide: Callable[[list[Any]], Future[Any]]) -> Callable[..., Any]:
        async def listener(messages: list[Any]) -> Any:
            return await asyncio.wrap_future(decide(messages))

        return listener


class _Awaited:
    """A client for asyncio whose methods wait, and whose blocks are plain ones."""

    def __init__(self, loop: LoopThread, client: Any) -> None:
        self._loop, self._client = loop, client

    def __getattr__(self, name: str) -> Any:
        found = self._loop.call(lambda: getattr(self._client, name))
        return partial(self._call, found) if callable(found) else found

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        given = [each._client if isinstance(each, _Awaited) else each for each in args]

        async def calling() -> Any:
            result = function(*given, **options)
            return await result if inspect.iscoroutine(result) else result

        result = self._loop.run(calling(), CALL_S)
        if isinstance(result, asyncio.Future):
            return _Pending(self._loop, result)
        return _Awaited(self._loop, result) if hasattr(result, "__aenter__") else result

    def __enter__(self) -> _Awaited:
        self._call(self._client.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._client.__aexit__, *error)


class _Pending:
    """A future of asyncio, as one of threads."""

    def __init__(self, loop: LoopThread, future: asyncio.Future[Any]) -> None:
        self._loop, self._future = loop, future

    def result(self, timeout: float = CALL_S) -> Any:
        async def waiting() -> Any:
            return await self._future

        return self._loop.run(waiting(), timeout)
