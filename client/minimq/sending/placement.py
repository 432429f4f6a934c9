"""Where the next batch goes: a queue that takes messages, at a broker that is well and whose window has room."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from minimq.sending.fault_table import Exclusion, FaultTable, choose_brokers
from minimq.sending.latency_table import latency_table
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selection import RoundRobin
from minimq_common.errors import MiniMQError, QueueNotFound, TopicNotFound, TransportError, Unavailable
from minimq_common.model import MessageQueue, TopicRoute
from minimq_common.names import machine_room_of


class Place(NamedTuple):
    """A queue and the address of its broker, in whose window a place is taken."""

    queue: MessageQueue
    address: str


#: There are brokers that take the batch, but none of them just now.
BUSY = Place(MessageQueue("", "", -1), "")


class KnownRoutes(Protocol):
    """What a placement needs of a `RouteCache`."""

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic if it is known, without asking anybody."""


class _Writable(NamedTuple):
    """What is writable of a topic by one route, which is looked through once."""

    route: TopicRoute
    queues: Sequence[MessageQueue]
    known: frozenset[MessageQueue]
    brokers: tuple[str, ...]
    near: tuple[str, ...]


class _Chosen(NamedTuple):
    """The brokers that were chosen once, and what that followed from."""

    writable: _Writable
    version: int
    until: float
    brokers: Sequence[str]

    def holds(self, writable: _Writable, version: int, now: float) -> bool:
        return self.writable is writable and self.version == version and now < self.until


class Placement:
    """Chooses queues, counts what is under way, and keeps away from brokers that fail or are slow.

    Not thread-safe: guarded by the lock of its `Dispatcher`.

    Args:
        routes: where the queues are.
        options: of the producer.
    """

    def __init__(self, routes: KnownRoutes, options: ProducerOptions) -> None:
        self._routes = routes
        self._window = options.window
        self._machine_rooms = frozenset(options.machine_rooms)
        self._avoids_faults = options.fault_avoidance
        self._faults = FaultTable(latency_table(options.latency_table))
        self._under_way: Counter[str] = Counter()  # requests by broker name
        #: Queues that were chosen by the caller and have a batch on its way: the next one must not overtake it.
        self._ordered: set[MessageQueue] = set()
        self._round_robin: dict[str, RoundRobin] = {}
        self._writable: dict[str, _Writable] = {}
        self._chosen: dict[tuple[str, str | None], _Chosen] = {}

    # ---- choosing -------------------------------------------------------------------------------

    def take(self, topic: str, queue: MessageQueue | None, avoid: str | None, now: float) -> Place | None:
        """Take a place for a batch; `landed` gives it back.

        Args:
            topic: of the batch.
            queue: where it must go, or None.
            avoid: name of the broker at which it was tried last, or None for the first try.
            now: the time.

        Returns:
            A place, `BUSY`, or None when no broker takes the batch.
        """
        writable = self._writable_of(topic)
        if writable is None:
            return None
        if queue is not None:
            chosen = self._chosen_by_caller(queue, writable, first_try=avoid is None)
        else:
            chosen = self._in_turn(topic, writable, avoid, now)
        if chosen is None:
            return None
        if chosen is BUSY.queue:
            return BUSY
        address = writable.route.master_of(chosen.broker_name)
        if address is None:
            return None
        self._under_way[chosen.broker_name] += 1
        return Place(chosen, address)

    def has_other(self, topic: str, broker: str | None, now: float) -> bool:
        """Tell whether a broker other than this one, and well, takes messages for a topic."""
        writable = self._writable_of(topic)
        return writable is not None and any(
            name != broker and self._faults.available(name, now) for name in writable.brokers
        )

    def why_nowhere(self, topic: str, queue: MessageQueue | None) -> MiniMQError:
        """Return why there is no place for a batch."""
        if queue is None:
            return TopicNotFound(f"no broker takes messages for topic {topic!r} now")
        writable = self._writable_of(topic)
        if writable is None or writable.route.master_of(queue.broker_name) is None or queue in writable.known:
            return Unavailable(f"broker {queue.broker_name} of queue {queue} was not registered just now")
        return QueueNotFound(f"queue {queue} takes no messages: it does not exist, or is not writable now")

    def _chosen_by_caller(self, queue: MessageQueue, writable: _Writable, *, first_try: bool) -> MessageQueue | None:
        if first_try and queue in self._ordered:  # a later try is by the batch that is on its way itself
            return BUSY.queue
        known = queue in writable.known
        if known and not self._has_room(queue):
            return BUSY.queue
        self._ordered.add(queue)
        return queue if known else None

    def _in_turn(self, topic: str, writable: _Writable, avoid: str | None, now: float) -> MessageQueue | None:
        if not writable.queues:
            return None
        turn = self._round_robin.get(topic)
        if turn is None:
            turn = self._round_robin[topic] = RoundRobin(random.randrange(len(writable.queues)))
        brokers = self._usable(writable, avoid, now)
        chosen = turn.select(writable.queues, lambda queue: queue.broker_name in brokers and self._has_room(queue))
        return chosen or BUSY.queue

    def _usable(self, writable: _Writable, avoid: str | None, now: float) -> Sequence[str]:
        """Return the brokers to which a batch may go; chosen once until something changes."""
        key = (writable.route.topic, avoid)
        known = self._chosen.get(key)
        if known is not None and known.holds(writable, self._faults.version, now):
            return known.brokers
        # Near ones that are all in trouble are not worth staying with while there are others.
        near_ones_do = any(name != avoid and self._faults.available(name, now) for name in writable.near)
        brokers = choose_brokers(writable.near if near_ones_do else writable.brokers, self._faults, avoid, now)
        self._chosen[key] = _Chosen(writable, self._faults.version, self._faults.next_end(now), brokers)
        return brokers

    def _has_room(self, queue: MessageQueue) -> bool:
        return self._under_way[queue.broker_name] < self._window

    def _writable_of(self, topic: str) -> _Writable | None:
        route = self._routes.known(topic)
        if route is None:
            return None
        known = self._writable.get(topic)
        if known is None or known.route is not route:
            queues = route.write_queues()
            brokers = tuple(dict.fromkeys(queue.broker_name for queue in queues))
            near = tuple(name for name in brokers if machine_room_of(name) in self._machine_rooms)
            known = self._writable[topic] = _Writable(route, queues, frozenset(queues), brokers, near)
        return known

    # ---- outcomes -------------------------------------------------------------------------------

    def landed(self, queue: MessageQueue) -> None:
        """A request to this queue is no longer under way."""
        self._under_way[queue.broker_name] -= 1

    def done(self, queue: MessageQueue) -> None:
        """The batch for a queue chosen by the caller is stored or given up; the next one may go."""
        self._ordered.discard(queue)

    def answered(self, broker: str, latency_s: float, now: float) -> None:
        """A broker has stored a batch in that time."""
        if self._avoids_faults:
            self._faults.reached(broker, now)
            self._faults.measured(broker, latency_s, now)

    def failed(self, broker: str, error: MiniMQError, now: float) -> None:
        """A try at a broker failed."""
        if self._avoids_faults and error.avoid_broker:
            self._faults.failed(
                broker,
                error.message,
                now,
                unreachable=isinstance(error, TransportError),
                at_least_s=error.retry_after_s,
            )

    def probed(self, broker: str, now: float, *, reached: bool) -> None:
        """A broker that had not been reached was asked again."""
        if reached:
            self._faults.reached(broker, now)
        else:
            self._faults.unreached(broker, now)

    def to_probe(self, now: float) -> Mapping[str, str]:
        """Return the addresses of brokers that are left out as unreachable, by name, if a route still names them."""
        addresses = {
            name: writable.route.master_of(name) for writable in self._writable.values() for name in writable.brokers
        }
        return {name: address for name in self._faults.to_probe(now) if (address := addresses.get(name)) is not None}

    def avoided(self, now: float) -> Sequence[Exclusion]:
        """Return the brokers that are left out now."""
        return self._faults.excluded(now)
