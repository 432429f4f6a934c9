"""Waiting until a queue grows, without holding a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minimq_broker.core.long_poll import LongPoll
from minimq_broker.core.state import QueueEnd, QueueKey


class Arrivals:
    """The long polls of one broker. Belongs to the event loop; any thread may read their number."""

    def __init__(self, queue_end: Callable[[QueueKey], QueueEnd]) -> None:
        self._queue_end = queue_end
        self._long_poll: LongPoll[asyncio.Future[None]] = LongPoll()
        self._loop = asyncio.get_running_loop()
        #: Called with each queue that has grown, and with None to make all readers check again; must not raise.
        self.listeners: list[Callable[[QueueKey | None], None]] = []
        #: Called with each queue for which a batch is on its way to the disk; must not raise.
        self.early_listeners: list[Callable[[QueueKey], None]] = []

    def __len__(self) -> int:
        return len(self._long_poll)

    async def wait(self, queue: QueueKey, offset: int, wait_s: float) -> None:
        """Return when a queue may have grown beyond `offset`, its topic is gone, or the time is over."""
        if self._queue_end(queue).offset > offset:
            return
        waiter = self._loop.create_future()
        self._long_poll.add(queue, waiter)
        timer = self._loop.call_later(wait_s, _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._long_poll.remove(queue, waiter)

    def wake(self, queue: QueueKey) -> None:
        """Wake all readers that wait for a queue, to check whether it has grown and they may still read."""
        _wake(self._long_poll.arrived(queue))
        for listener in self.listeners:
            listener(queue)

    def wake_all(self) -> None:
        """Wake all readers."""
        _wake(self._long_poll.all())
        for listener in self.listeners:
            listener(None)


def _wake(waiters: set[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        _resolve(waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
