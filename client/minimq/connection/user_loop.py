"""Calls on the event loop of a user. Those that gather are made together: waking a loop costs a system call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class UserLoop:
    """Makes calls on one event loop. Thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        #: The loop has been woken, and has not looked yet.
        self._is_woken = False

    def call(self, function: Callable[[], object]) -> None:
        """Have a function called, which must not raise; never, if the loop is closed, and with it all who waited."""
        self._calls.append(function)
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._make_calls)
            except RuntimeError:  # it is closed
                self._is_woken = False
                self._calls.clear()

    def _make_calls(self) -> None:
        self._is_woken = False  # first: whoever adds one from here on wakes the loop again
        for _ in range(len(self._calls)):
            self._calls.popleft()()


class LoopOutcome(Generic[T]):
    """One outcome: set by any thread, awaited on the loop through `future`."""

    __slots__ = ("_error", "_loop", "_value", "future")

    def __init__(self, loop: UserLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[T] = loop.loop.create_future()

    def complete(self, value: T | None, error: BaseException | None, /) -> None:
        """Take the value, or the reason why there is none."""
        if not self.future.cancelled():
            self._value, self._error = value, error
            self._loop.call(self._resolve)

    def _resolve(self) -> None:
        if self.future.done():  # it was cancelled
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        elif self._value is not None:
            self.future.set_result(self._value)
