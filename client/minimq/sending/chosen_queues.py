"""The queues of messages that may not go to any: chosen by the caller, by message group, or by key."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from minimq.arguments import check_function, check_queue
from minimq.sending.key_queues import by_key
from minimq.sending.selectors import Selector, by_message_group
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message, MessageQueue, Permission, TopicRoute
from minimq_common.properties import check_message_group


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


class ChosenQueues:
    """Chooses queues among those of a route. Thread-safe."""

    def __init__(self) -> None:
        self._topics: dict[str, OrderedQueues] = {}
        self._latest: dict[str, TopicRoute] = {}
        self._by_message_group = by_message_group()
        self._by_key = by_key()
        self._lock = threading.RLock()  # protects these; a signal handler may take it once more

    def of(self, route: TopicRoute) -> Sequence[MessageQueue]:
        """Return the queues of a topic among which selectors choose."""
        with self._lock:
            if route is not self._latest.get(route.topic):
                self._topics.setdefault(route.topic, OrderedQueues())
                self.route_changed(route)
            return self._topics[route.topic].queues()

    def route_changed(self, route: TopicRoute) -> None:
        """Take in a route that has changed, though nothing is sent: what it says may be gone before the next send."""
        with self._lock:
            known = self._topics.get(route.topic)
            if known is not None:
                known.update(route)
                self._latest[route.topic] = route

    def are_complete(self, route: TopicRoute) -> bool:
        """Tell whether all queues of a topic are known, if it is compacted."""
        return not route.key_queues or route.key_queues == len(self.of(route))

    def choose(
        self, route: TopicRoute, message: Message, queue: MessageQueue | None, selector: Selector | None
    ) -> MessageQueue | None:
        """Return the queue of a message, None for any. Raises `InvalidArgument`."""
        if message.message_group is not None:
            if selector is not None or queue is not None:
                raise InvalidArgument("a message group has its queue: leave out queue and selector")
            check_message_group(message.message_group)
            selector = self._by_message_group
        elif route.key_queues:
            if selector is not None or queue is not None:
                raise InvalidArgument("each key of a compacted topic has its queue: leave out queue and selector")
            selector = self._by_key
        if selector is not None:
            if queue is not None:
                raise InvalidArgument("give either queue or selector: the selector chooses the queue")
            check_function("selector", selector)
            queue = selector(self.of(route), message)
            chosen: object = queue
            if not isinstance(chosen, MessageQueue) or type(chosen.queue_id) is not int:
                raise InvalidArgument(f"the selector returned {queue!r}: it must return one of the queues it was given")
        check_chosen(message.topic, queue)
        return queue


def check_chosen(topic: str, queue: MessageQueue | None) -> None:
    """Raise `InvalidArgument` if a queue is none of a topic."""
    if queue is None:
        return
    check_queue("queue", queue)
    if queue.topic != topic:
        raise InvalidArgument(f"a message for topic {topic!r} cannot go to queue {queue} of another topic")
