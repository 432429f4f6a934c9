"""A reader that waits at the end of a queue."""

from __future__ import annotations

import asyncio


class Woken(asyncio.Event):
    """Is set when `LongPolls` wakes it."""

    def wake(self) -> None:
        self.set()
