"""The queues of messages that may not go to any: chosen by the caller, by message group, or by key."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from minimq.arguments import check_function, check_queue
from minimq.sending.key_queues import by_key
from minimq.sending.selector_queues import SelectorQueues
from minimq.sending.selectors import Selector, by_message_group
from minimq_common.errors import InvalidArgument
from minimq_common.message_group import check_message_group
from minimq_common.model import Message, MessageQueue, TopicRoute


class ChosenQueues:
    """Chooses queues among those of a route. Thread-safe."""

    def __init__(self) -> None:
        self._queues = SelectorQueues()
        self._by_message_group = by_message_group()
        self._by_key = by_key()
        self._lock = threading.RLock()  # protects these; a signal handler may take it once more

    def of(self, route: TopicRoute) -> Sequence[MessageQueue]:
        """Return the queues of a topic among which selectors choose."""
        with self._lock:
            return self._queues.of(route)

    def route_changed(self, route: TopicRoute) -> None:
        """Take in a route that has changed."""
        with self._lock:
            self._queues.changed(route)

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
