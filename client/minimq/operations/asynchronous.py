"""Methods of `Admin` for asyncio."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from minimq.admin import Admin

P = ParamSpec("P")
T = TypeVar("T")


class AsyncOperations:
    """A part of `minimq.aio.Admin`: the same methods, each run by a thread."""

    _admin: Admin


def asynchronous(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[AsyncOperations, P], Coroutine[Any, Any, T]]:
    """Return the method for `minimq.aio.Admin`, with the same parameters."""

    @functools.wraps(method)
    async def call(self: AsyncOperations, /, *args: P.args, **named: P.kwargs) -> T:
        import asyncio

        return await asyncio.to_thread(method, self._admin, *args, **named)

    return call


def listed(
    method: Callable[Concatenate[Any, P], Iterator[T]],
) -> Callable[Concatenate[AsyncOperations, P], Coroutine[Any, Any, list[T]]]:
    """Do as `asynchronous` does, for a method that returns an iterator: it returns a list of all."""

    @functools.wraps(method)
    def all_of(self: Any, /, *args: P.args, **named: P.kwargs) -> list[T]:
        return list(method(self, *args, **named))

    return asynchronous(all_of)
