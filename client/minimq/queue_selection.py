"""Which queue the next batch goes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minimq_common.model import MessageQueue


class RoundRobin:
    """Queues in turn. Not thread-safe.

    Args:
        start: where to begin; a random number spreads many producers evenly.
    """

    def __init__(self, start: int) -> None:
        self._next = start

    def select(self, queues: Sequence[MessageQueue], usable: Callable[[MessageQueue], bool]) -> MessageQueue | None:
        """Return the next usable queue in turn, None when no queue is."""
        for step in range(len(queues)):
            queue = queues[(self._next + step) % len(queues)]
            if usable(queue):
                self._next = (self._next + step + 1) % len(queues)
                return queue
        return None
