"""An event loop in virtual time: it jumps to the next timer as soon as nothing is to be done before it."""

from __future__ import annotations

import asyncio
import selectors


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing is ready; no timer takes real time."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Let time pass, in which nothing happens."""
        self._now += seconds


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("nothing is going to happen any more")
        if timeout > 0:
            self._loop.pass_time(timeout)
        return super().select(0)
