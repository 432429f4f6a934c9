"""The queues among which selectors choose, by topic."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from minimq.sending.ordered_queues import OrderedQueues
from minimq_common.model import MessageQueue, TopicRoute


class SelectorQueues:
    """What one producer remembers of the queues of each topic; see `OrderedQueues`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: dict[str, OrderedQueues] = {}
        self._latest: dict[str, tuple[TopicRoute, Sequence[MessageQueue]]] = {}  # read without the lock

    def of(self, route: TopicRoute) -> Sequence[MessageQueue]:
        """Return the queues of a topic, given its route as it is now."""
        latest = self._latest.get(route.topic)
        if latest is not None and latest[0] is route:
            return latest[1]
        with self._lock:
            return self._update(self._memory.setdefault(route.topic, OrderedQueues()), route)

    def changed(self, route: TopicRoute) -> None:
        """Take in a route that has changed, though nothing is sent: what it says may be gone before the next send."""
        with self._lock:
            memory = self._memory.get(route.topic)
            if memory is not None:
                self._update(memory, route)

    def _update(self, memory: OrderedQueues, route: TopicRoute) -> Sequence[MessageQueue]:
        memory.update(route)
        self._latest[route.topic] = route, memory.queues()
        return memory.queues()
