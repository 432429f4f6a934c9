"""Transfer of receipts and replies from the threads of a producer to an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from minimq.sending.receipt import SendReceipt
from minimq.sending.requests.reply import Reply

T = TypeVar("T")


class LoopOutcomes:
    """Carries outcomes over to one event loop, all that have gathered at a time: waking a loop costs a system call.

    Thread-safe.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: deque[LoopOutcome[Any]] = deque()
        #: The loop has been woken, and has not looked yet.
        self._is_woken = False

    def new(self) -> LoopOutcome[SendReceipt]:
        """Return the outcome of a message, which is not there yet. Called on the loop."""
        return LoopOutcome(self.loop.create_future(), self._carry)

    def new_reply(self) -> LoopOutcome[Reply]:
        """Return the outcome of a request, which is not there yet. Called on the loop."""
        return LoopOutcome(self.loop.create_future(), self._carry)

    def _carry(self, outcome: LoopOutcome[Any]) -> None:
        self._ready.append(outcome)
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._resolve)
            except RuntimeError:  # the loop is closed, and with it all who waited
                self._is_woken = False
                self._ready.clear()

    def _resolve(self) -> None:
        self._is_woken = False  # first: whoever adds something from here on wakes the loop again
        for _ in range(len(self._ready)):
            self._ready.popleft().resolve()


class LoopOutcome(Generic[T]):
    """One outcome: set by any thread, awaited on the loop through `future`."""

    __slots__ = ("_carry", "_error", "_receipt", "future")

    def __init__(self, future: asyncio.Future[T], carry: Callable[[LoopOutcome[Any]], None]) -> None:
        self.future = future
        self._carry = carry

    def complete(self, receipt: T | None, error: BaseException | None, /) -> None:
        """Take the receipt or the reply, or the reason why there is none."""
        if not self.future.cancelled():
            self._receipt, self._error = receipt, error
            self._carry(self)

    def resolve(self) -> None:
        """Tell whoever awaits it. Called on the loop."""
        if self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        elif self._receipt is not None:
            self.future.set_result(self._receipt)
