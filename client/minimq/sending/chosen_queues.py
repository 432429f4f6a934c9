"""Fixed queues of messages: chosen by the caller, by message group, or by key."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from minimq.arguments import check_function, check_queue
from minimq.sending.selectors import Selector, across_brokers, consistent_hash
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.model import Message, MessageQueue, Permission, TopicRoute, check_empty, check_message_group
from minimq_common.text_units import count_of


class _KnownQueues(NamedTuple):
    """The queues of one topic from which selectors choose, and the route that they were computed from."""

    route: TopicRoute
    #: Number of writable queues by broker name.
    counts: Mapping[str, int]
    queues: tuple[MessageQueue, ...]
    #: The same queues in the order of `by_consistent_hash`.
    across: Sequence[MessageQueue]


def _queues_of(topic: str, counts: Mapping[str, int]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, name, number) for name in sorted(counts) for number in range(counts[name]))


class ChosenQueues:
    """Chooses the queues of messages that need a fixed one. Thread-safe.

    When a broker dies, a hash over the remaining queues would move nearly every key, and break the order of its
    messages. So the queues of offline brokers count as well: messages for them wait or fail, and each key keeps its
    queue. Name servers report them. A queue is gone once the name server that reported it no longer does, as after a
    broker is forgotten; a name server that was started later may not know all queues yet.

    What a registered broker reports is believed: if it has fewer queues now, only these are chosen; without write
    permission, none. That is how a broker is taken out of service: withdraw its write permission first.
    """

    def __init__(self) -> None:
        self._topics: dict[str, _KnownQueues] = {}
        self._lock = threading.RLock()  # protects `_topics`

    def of(self, route: TopicRoute) -> Sequence[MessageQueue]:
        """Return the sorted queues from which selectors choose; the same tuple object until they change."""
        return self._of(route).queues

    def across(self, route: TopicRoute) -> Sequence[MessageQueue]:
        """Return the same queues in the order in which keys are spread over them."""
        return self._of(route).across

    def _of(self, route: TopicRoute) -> _KnownQueues:
        with self._lock:
            known = self._topics.get(route.topic)
            if known is None or known.route is not route:
                known = self._update(route, known)
            return known

    def route_changed(self, route: TopicRoute) -> None:
        """Record a changed route, even if nothing is sent: its brokers may be gone again before the next send."""
        with self._lock:
            known = self._topics.get(route.topic)
            if known is not None:
                self._update(route, known)

    def _update(self, route: TopicRoute, known: _KnownQueues | None) -> _KnownQueues:
        counts: dict[str, int] = {} if known is None else {**known.counts}
        if known is not None and known.route.run == route.run:
            reported = [each.broker_name for each in known.route.queues]
            for name in reported + [each.broker_name for each in known.route.offline]:
                counts.pop(name, None)
        counts |= {offline.broker_name: offline.write_queues for offline in route.offline}
        for data in route.queues:
            counts[data.broker_name] = data.write_queues if data.permission & Permission.WRITE else 0
        if known is not None and counts == known.counts:
            queues, across = known.queues, known.across
        else:
            queues = _queues_of(route.topic, counts)
            across = across_brokers(queues)
        known = self._topics[route.topic] = _KnownQueues(route, counts, queues, across)
        return known

    def are_complete(self, route: TopicRoute) -> bool:
        """Return whether all queues of a compacted topic are known; True for other topics."""
        return not route.key_queues or route.key_queues == len(self.of(route))

    def check_complete(self, route: TopicRoute) -> TopicRoute:
        """Return the route. Raises `Unavailable` if queues of a compacted topic are missing: keys need all of them."""
        if self.are_complete(route):
            return route
        offline = f"; offline: {', '.join(broker.broker_name for broker in route.offline)}" if route.offline else ""
        raise Unavailable(
            f"topic {route.topic!r} is compacted and has {count_of(route.key_queues, 'queue')} on all brokers, of "
            f"which {len(self.of(route))} can be written to now, so the queue of a key is not known: start the missing "
            f"brokers, and allow writing on all{offline}"
        )

    def choose(
        self, route: TopicRoute | None, message: Message, queue: MessageQueue | None, selector: Selector | None
    ) -> MessageQueue | None:
        """Return the queue that a message must go to; None for any. Raises `InvalidArgument`.

        Without a route, only checks the arguments: calls no selector.
        """
        if message.message_group is not None or (route is not None and route.key_queues):
            if selector is not None or queue is not None:
                what = "each key of a compacted topic" if message.message_group is None else "a message group"
                raise InvalidArgument(f"{what} has its queue: leave out queue and selector")
            key = _own_key(message)
            if route is None:
                return None
            across = self._of(route).across
            return across[consistent_hash(key, len(across))]
        if selector is not None:
            if queue is not None:
                raise InvalidArgument("give either queue or selector: the selector chooses the queue")
            check_function("selector", selector)
            if route is None:
                return None
            queue = selector(self._of(route).queues, message)
            chosen: object = queue
            if not isinstance(chosen, MessageQueue) or type(chosen.queue_id) is not int:
                raise InvalidArgument(f"the selector returned {queue!r}: it must return one of the queues it was given")
        check_chosen(message.topic, queue)
        return queue


def _own_key(message: Message) -> str:
    if message.message_group is not None:
        check_message_group(message.message_group)
        return message.message_group
    if not message.keys:
        raise InvalidArgument(
            f"topic {message.topic!r} is compacted by key, and the message has none: give it one in `keys`"
        )
    return message.keys[0]


def check_chosen(topic: str, queue: MessageQueue | None) -> None:
    """Raise `InvalidArgument` if a queue belongs to another topic."""
    if queue is None:
        return
    check_queue("queue", queue)
    if queue.topic != topic:
        raise InvalidArgument(f"a message for topic {topic!r} cannot go to queue {queue} of another topic")


def takes_only_tombstones(route: TopicRoute) -> bool | None:
    """Return whether a topic is compacted: then an empty body is a tombstone. None for `%` topics, which take any."""
    return None if route.topic.startswith("%") else bool(route.key_queues)


def check_body(message: Message, route: TopicRoute) -> None:
    """Raise `InvalidArgument` if the message has an empty body and its topic does not allow that."""
    is_compacted = takes_only_tombstones(route)
    if is_compacted is not None:
        check_empty(message, is_compacted=is_compacted)
