"""The waiters of queues. A waiter is any object; nobody is held in a thread."""

from __future__ import annotations

from collections import defaultdict
from typing import Generic, TypeVar

from minimq_broker.core.state import QueueKey

Waiter = TypeVar("Waiter")


class LongPoll(Generic[Waiter]):
    """The waiters of all queues. Used by one thread."""

    def __init__(self) -> None:
        self._waiting: defaultdict[QueueKey, set[Waiter]] = defaultdict(set)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.copy().values()))  # also for a thread that only looks

    def add(self, queue: QueueKey, waiter: Waiter) -> None:
        """Let a waiter hear of the next arrival in a queue."""
        self._waiting[queue].add(waiter)

    def remove(self, queue: QueueKey, waiter: Waiter) -> None:
        """Forget a waiter, whether or not it was woken."""
        waiters = self._waiting.get(queue)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiting[queue]

    def arrived(self, queue: QueueKey) -> set[Waiter]:
        """Return whom to wake because a queue has grown; they no longer wait."""
        return self._waiting.pop(queue, set())

    def all(self) -> set[Waiter]:
        """Return everybody, to let them look again; they no longer wait."""
        waiters = set[Waiter]().union(*self._waiting.values())
        self._waiting.clear()
        return waiters
