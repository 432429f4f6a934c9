"""Transfer of results from the threads of a client to an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class LoopOutcomes(Generic[T]):
    """Carries outcomes over to one event loop, all that have gathered at a time: waking a loop costs a system call.

    Thread-safe.

    Args:
        loop: where the outcomes are waited for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._ready: list[Callable[[], None]] = []

    def new(self) -> LoopOutcome[T]:
        """Return an outcome that is not there yet. Called on the loop."""
        return LoopOutcome(self.loop.create_future(), self._carry)

    def _carry(self, resolve: Callable[[], None]) -> None:
        with self._lock:
            self._ready.append(resolve)
            first = len(self._ready) == 1
        if first:
            try:
                self.loop.call_soon_threadsafe(self._resolve)
            except RuntimeError:  # the loop is closed, and with it all who waited
                with self._lock:
                    self._ready.clear()

    def _resolve(self) -> None:
        with self._lock:
            ready, self._ready = self._ready, []
        for resolve in ready:
            resolve()


class LoopOutcome(Generic[T]):
    """One outcome: set by any thread, awaited on the loop through `future`."""

    __slots__ = ("_carry", "future")

    def __init__(self, future: asyncio.Future[T], carry: Callable[[Callable[[], None]], None]) -> None:
        self.future = future
        self._carry = carry

    def complete(self, result: T | None, error: BaseException | None, /) -> None:
        """Take the result, or the reason why there is none."""
        if not self.future.cancelled():
            self._carry(partial(self._resolve, result, error))

    def _resolve(self, result: T | None, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        elif result is not None:
            self.future.set_result(result)
