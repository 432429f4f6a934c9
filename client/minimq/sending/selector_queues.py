"""The queues among which selectors choose, by topic. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from minimq_common.model import MessageQueue, Permission, TopicRoute


class OrderedQueues:
    """The queues of one topic among which selectors choose. Not thread-safe.

    When a broker dies, its queues vanish from the route. A hash over the rest would send nearly every key to
    another queue and so break the order of its messages. So this remembers the queues of every broker that once was
    there with a master: their messages wait or fail, all others stay where they are.

    What a broker with a master says itself is believed: without the permission to write, or with fewer queues, it takes
    part with what is left. That is how a broker is taken out of service: its permission to write is withdrawn first.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}  # queues that take messages, by broker name
        self._queues: tuple[MessageQueue, ...] = ()

    def update(self, route: TopicRoute) -> None:
        """Take in the route of the topic as it is now; always that of the same topic."""
        counts = self._counts | {
            data.broker_name: data.write_queues if data.permission & Permission.WRITE else 0
            for data in route.queues
            if route.master_of(data.broker_name) is not None
        }
        if counts == self._counts:
            return
        self._counts = counts
        self._queues = tuple(
            MessageQueue(route.topic, broker_name, queue_id)
            for broker_name in sorted(counts)
            for queue_id in range(counts[broker_name])
        )

    def queues(self) -> tuple[MessageQueue, ...]:
        """Return the queues, sorted; the same tuple until they change."""
        return self._queues


class SelectorQueues:
    """The `OrderedQueues` of each topic of one producer. Not thread-safe: guarded by a lock of its `ProducerCore`."""

    def __init__(self) -> None:
        self._topics: dict[str, OrderedQueues] = {}
        self._latest: dict[str, TopicRoute] = {}

    def of(self, route: TopicRoute) -> Sequence[MessageQueue]:
        """Return the queues of a topic, given its route as it is now."""
        if route is not self._latest.get(route.topic):
            self._topics.setdefault(route.topic, OrderedQueues())
            self.changed(route)
        return self._topics[route.topic].queues()

    def changed(self, route: TopicRoute) -> None:
        """Take in a route that has changed, though nothing is sent: what it says may be gone before the next send."""
        known = self._topics.get(route.topic)
        if known is not None:
            known.update(route)
            self._latest[route.topic] = route
