"""Where the next batch goes: a queue that takes messages, at a broker whose window has room."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from minimq.queue_selection import RoundRobin
from minimq.routing import RouteCache
from minimq_common.errors import MiniMQError, QueueNotFound, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue, TopicRoute


class Place(NamedTuple):
    """A queue and the address of its broker, in whose window a place is taken."""

    queue: MessageQueue
    address: str


#: There are brokers that take the batch, but none of them just now.
BUSY = Place(MessageQueue("", "", -1), "")


class Placement:
    """Chooses queues and counts what is under way. Not thread-safe: guarded by the lock of its `Dispatcher`.

    Args:
        routes: where the queues are.
        window: requests that may be under way to one broker.
    """

    def __init__(self, routes: RouteCache, window: int) -> None:
        self._routes = routes
        self._window = window
        self._under_way: Counter[str] = Counter()  # requests by broker name
        #: Queues that were chosen by the caller and have a batch on its way: the next one must not overtake it.
        self._ordered: set[MessageQueue] = set()
        self._round_robin: dict[str, RoundRobin] = {}
        self._write_queues: dict[str, tuple[TopicRoute, Sequence[MessageQueue]]] = {}

    def take(self, topic: str, queue: MessageQueue | None, avoid: str | None) -> Place | None:
        """Take a place for a batch; `landed` gives it back.

        Args:
            topic: of the batch.
            queue: where it must go, or None.
            avoid: name of the broker at which it was tried last, or None for the first try.

        Returns:
            A place, `BUSY`, or None when no broker takes the batch.
        """
        route = self._routes.known(topic)
        queues = self._queues_of(route) if route else ()
        if queue is not None:
            chosen = self._chosen_by_caller(queue, queues, first_try=avoid is None)
        else:
            chosen = self._in_turn(topic, queues, avoid)
        if chosen is None or route is None:
            return None
        if chosen is BUSY.queue:
            return BUSY
        address = route.master_of(chosen.broker_name)
        if address is None:
            return None
        self._under_way[chosen.broker_name] += 1
        return Place(chosen, address)

    def landed(self, queue: MessageQueue) -> None:
        """A request to this queue is no longer under way."""
        self._under_way[queue.broker_name] -= 1

    def done(self, queue: MessageQueue) -> None:
        """The batch for a queue chosen by the caller is stored or given up; the next one may go."""
        self._ordered.discard(queue)

    def why_nowhere(self, topic: str, queue: MessageQueue | None) -> MiniMQError:
        """Return why there is no place for a batch."""
        if queue is None:
            return TopicNotFound(f"no broker takes messages for topic {topic!r} now")
        route = self._routes.known(topic)
        if route is None or route.master_of(queue.broker_name) is None or queue in route.write_queues():
            return Unavailable(f"broker {queue.broker_name} of queue {queue} was not registered just now")
        return QueueNotFound(f"queue {queue} takes no messages: it does not exist, or is not writable now")

    def _chosen_by_caller(
        self, queue: MessageQueue, queues: Sequence[MessageQueue], *, first_try: bool
    ) -> MessageQueue | None:
        if first_try and queue in self._ordered:  # a later try is by the batch that is on its way itself
            return BUSY.queue
        if queue in queues and not self._has_room(queue):
            return BUSY.queue
        self._ordered.add(queue)
        return queue if queue in queues else None

    def _in_turn(self, topic: str, queues: Sequence[MessageQueue], avoid: str | None) -> MessageQueue | None:
        if not queues:
            return None
        turn = self._round_robin.get(topic)
        if turn is None:
            turn = self._round_robin[topic] = RoundRobin(random.randrange(len(queues)))
        chosen = turn.select(queues, lambda queue: queue.broker_name != avoid and self._has_room(queue))
        if chosen is None and all(queue.broker_name == avoid for queue in queues):
            chosen = turn.select(queues, self._has_room)
        return chosen or BUSY.queue

    def _has_room(self, queue: MessageQueue) -> bool:
        return self._under_way[queue.broker_name] < self._window

    def _queues_of(self, route: TopicRoute) -> Sequence[MessageQueue]:
        """Return the writable queues of a route; listed once for each route."""
        known = self._write_queues.get(route.topic)
        if known is None or known[0] is not route:
            known = self._write_queues[route.topic] = route, route.write_queues()
        return known[1]
