"""The queues among which selectors choose, by topic."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from minimq.queue_selection import OrderedQueues
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
            memory = self._memory.setdefault(route.topic, OrderedQueues())
            memory.update(route)
            queues = memory.queues()
            self._latest[route.topic] = route, queues
            return queues
