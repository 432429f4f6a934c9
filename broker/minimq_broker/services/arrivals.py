"""Waiting until a queue grows, without holding a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minimq_broker.core.state import QueueEnd, QueueKey


class Arrivals:
    """The long polls of one broker. Belongs to the event loop; any thread may read their number."""

    def __init__(self, queue_end: Callable[[QueueKey], QueueEnd]) -> None:
        self._queue_end = queue_end
        self._waiting: dict[QueueKey, set[asyncio.Future[None]]] = {}
        self._loop = asyncio.get_running_loop()
        #: Called with each queue that has grown, and with None to make all readers check again; must not raise.
        self.listeners: list[Callable[[QueueKey | None], None]] = []

    def __len__(self) -> int:
        return sum(map(len, self._waiting.copy().values()))

    async def wait(self, queue: QueueKey, offset: int, wait_s: float) -> None:
        """Return when a queue may have grown beyond `offset`, its topic is gone, or the time is over."""
        if self._queue_end(queue).offset > offset:
            return
        waiter = self._loop.create_future()
        self._waiting.setdefault(queue, set()).add(waiter)
        timer = self._loop.call_later(wait_s, _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            waiters = self._waiting.get(queue)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiting[queue]

    def wake(self, queue: QueueKey) -> None:
        """Wake all readers that wait for a queue, to check whether it has grown and they may still read."""
        for waiter in self._waiting.pop(queue, ()):
            _resolve(waiter)
        for listener in self.listeners:
            listener(queue)

    def wake_all(self) -> None:
        """Wake all readers."""
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            for waiter in waiters:
                _resolve(waiter)
        for listener in self.listeners:
            listener(None)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
