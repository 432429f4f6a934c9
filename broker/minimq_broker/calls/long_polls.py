"""The long polls of one broker: readers that wait at the end of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minimq_broker.commit.store import Store
from minimq_broker.state.state import QueueKey


class LongPolls:
    """Belongs to the event loop; any thread may read their number."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[QueueKey, set[asyncio.Future[None]]] = {}
        self._loop = asyncio.get_running_loop()
        #: Called with each queue that has grown, or with None if all readers must check again. Must not raise.
        self.listeners: list[Callable[[QueueKey | None], None]] = []

    def __len__(self) -> int:
        return sum(map(len, self._waiting.copy().values()))

    async def wait(self, queue: QueueKey, offset: int, wait_s: float) -> None:
        """Wait until a queue may have grown beyond `offset`, its topic may be gone, or `wait_s` has passed."""
        if self._store.queue_end(queue).offset > offset:
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
        """Wake the readers of a queue, to check whether it has grown and whether they may still read."""
        for waiter in self._waiting.pop(queue, ()):
            _resolve(waiter)
        for listener in self.listeners:
            listener(queue)

    def wake_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            for waiter in waiters:
                _resolve(waiter)
        for listener in self.listeners:
            listener(None)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
