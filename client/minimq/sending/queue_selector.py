"""Selection of the queue for the next batch: a queue that takes messages, at a broker that is well and has room."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from minimq.sending.fault_table import Exclusion, FaultTable, choose_brokers
from minimq.sending.pending_batch import Target
from minimq.sending.producer_options import ProducerOptions
from minimq_common.errors import MiniMQError, NoPermission, QueueNotFound, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue, Permission, TopicRoute
from minimq_common.names import machine_room_of


class KnownRoutes(Protocol):
    """The part of a `RouteCache` that a `QueueSelector` needs."""

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic if it is known, without asking anybody."""


class _Writable(NamedTuple):
    """The writable part of a route, which is looked through once."""

    route: TopicRoute
    queues: Sequence[MessageQueue]
    known: frozenset[MessageQueue]
    brokers: tuple[str, ...]
    near: tuple[str, ...]


class _Chosen(NamedTuple):
    """The brokers that were chosen once, and the facts from which that followed."""

    writable: _Writable
    version: int
    until: float
    brokers: Sequence[str]

    def holds(self, writable: _Writable, version: int, now: float) -> bool:
        return self.writable is writable and self.version == version and now < self.until


class RoundRobin:
    """Queues in turn. Not thread-safe."""

    def __init__(self, start: int) -> None:
        self._next = start

    def select(self, queues: Sequence[MessageQueue], usable: Callable[[MessageQueue], bool]) -> MessageQueue | None:
        """Return the next usable queue in turn, None when no queue is."""
        count = len(queues)
        for step in range(self._next, self._next + count):
            queue = queues[step % count]
            if usable(queue):
                self._next = (step + 1) % count
                return queue
        return None


class QueueSelector:
    """Selects queues, counts what is under way, and keeps away from brokers that fail or are slow.

    Not thread-safe: it belongs to a `RecordAccumulator`.
    """

    def __init__(self, routes: KnownRoutes, options: ProducerOptions, chance: random.Random) -> None:
        self._routes = routes
        self._chance = chance
        self._window = options.window
        self._machine_rooms = frozenset(options.machine_rooms)
        self._avoids_faults = options.fault_avoidance
        self._faults = FaultTable()
        self._under_way: Counter[str] = Counter()  # requests by broker name
        self._full = 0  # brokers whose window is full
        self._brokers: set[str] = set()  # those of all routes that were looked at
        self._round_robin: dict[str, RoundRobin] = {}
        self._writable: dict[str, _Writable] = {}
        self._chosen: dict[tuple[str, str | None], _Chosen] = {}

    # ---- choosing -------------------------------------------------------------------------------

    def take(self, topic: str, queue: MessageQueue | None, avoid: str | None, now: float) -> Target | None:
        """Select where a batch goes, and take a place in the window there; `release` gives it back."""
        writable = self._writable_of(topic)
        if writable is None:
            raise TopicNotFound(
                f"topic {topic!r} does not exist any more: create it with `minimq topic create {topic}`"
            )
        if queue is None:
            chosen = self._in_turn(writable, avoid, now)
        elif queue in writable.known:
            chosen = queue if self.has_room(queue.broker_name) else None
        else:
            raise _why_not(writable.route, queue)
        if chosen is None:
            return None
        address = writable.route.master_of(chosen.broker_name)
        assert address is not None  # or it would not be writable
        name = chosen.broker_name
        self._under_way[name] += 1
        if self._under_way[name] == self._window:
            self._full += 1
        return Target(chosen, address)

    def is_known(self, topic: str) -> bool:
        """Tell whether the route of a topic is known."""
        return self._routes.known(topic) is not None

    def has_room(self, broker: str | None) -> bool:
        """Tell whether the window to a broker has room; for None, whether that to any may have."""
        if broker is None:
            return not self._brokers or self._full < len(self._brokers)
        return self._under_way[broker] < self._window

    def capacity(self, topic: str) -> int:
        """Return how many batches of a topic may be under way at once, each for another queue; at least 1."""
        writable = self._writable_of(topic)
        return max(1, min(len(writable.queues), self._window * len(writable.brokers))) if writable is not None else 1

    def has_other(self, topic: str, broker: str | None, now: float) -> bool:
        """Tell whether a broker other than this one, and well, takes messages for a topic."""
        writable = self._writable_of(topic)
        return writable is not None and any(
            name != broker and self._faults.available(name, now) for name in writable.brokers
        )

    def _in_turn(self, writable: _Writable, avoid: str | None, now: float) -> MessageQueue | None:
        topic = writable.route.topic
        if not writable.queues:
            raise _why_nowhere(writable.route)
        brokers = self._usable(writable, avoid, now)
        if self._full:
            brokers = [name for name in brokers if self.has_room(name)]
            if not brokers:
                return None
        turn = self._round_robin.get(topic)
        if turn is None:
            turn = self._round_robin[topic] = RoundRobin(self._chance.randrange(len(writable.queues)))
        return turn.select(writable.queues, lambda queue: queue.broker_name in brokers)

    def _usable(self, writable: _Writable, avoid: str | None, now: float) -> Sequence[str]:
        key = (writable.route.topic, avoid)
        known = self._chosen.get(key)
        if known is not None and known.holds(writable, self._faults.version, now):
            return known.brokers
        # Near ones that are all in trouble are not worth staying with while there are others.
        near_ones_do = any(name != avoid and self._faults.available(name, now) for name in writable.near)
        brokers = choose_brokers(writable.near if near_ones_do else writable.brokers, self._faults, avoid, now)
        self._chosen[key] = _Chosen(writable, self._faults.version, self._faults.next_end(now), brokers)
        return brokers

    def _writable_of(self, topic: str) -> _Writable | None:
        route = self._routes.known(topic)
        if route is None:
            return None
        known = self._writable.get(topic)
        if known is None or known.route is not route:
            queues = route.write_queues()
            brokers = tuple(dict.fromkeys(queue.broker_name for queue in queues))
            near = tuple(name for name in brokers if machine_room_of(name) in self._machine_rooms)
            self._brokers.update(brokers)
            known = self._writable[topic] = _Writable(route, queues, frozenset(queues), brokers, near)
        return known

    # ---- outcomes -------------------------------------------------------------------------------

    def release(self, target: Target) -> None:
        """Give back a place in the window: the request is no longer under way."""
        name = target.queue.broker_name
        if self._under_way[name] == self._window:
            self._full -= 1
        self._under_way[name] -= 1

    def answered(self, broker: str, latency_s: float, now: float) -> None:
        """Note that a broker has stored a batch in that time."""
        if self._avoids_faults:
            self._faults.reached(broker, now)
            self._faults.measured(broker, latency_s, now)

    def failed(self, broker: str, error: MiniMQError, now: float) -> None:
        """Note that a try at a broker failed."""
        if self._avoids_faults and error.avoid_broker:
            self._faults.failed(
                broker,
                error.message,
                now,
                unreachable=not error.answered,
                at_least_s=error.retry_after_s,
            )

    def probed(self, broker: str, now: float, *, reached: bool) -> None:
        """Note that a broker that had not been reached was asked again."""
        if reached:
            self._faults.reached(broker, now)
        else:
            self._faults.unreached(broker, now)

    def to_probe(self, now: float) -> Mapping[str, str] | None:
        """Return the addresses of brokers that are left out as unreachable, by name, if a route still names them.

        None if there are no such brokers.
        """
        out = self._faults.to_probe(now)
        if not out:
            return None
        addresses = {
            name: writable.route.master_of(name) for writable in self._writable.values() for name in writable.brokers
        }
        return {name: address for name in out if (address := addresses.get(name)) is not None}

    def avoided(self, now: float) -> Sequence[Exclusion]:
        """Return the brokers that are left out now."""
        return self._faults.excluded(now)


def _why_nowhere(route: TopicRoute) -> MiniMQError:
    headless = sorted(data.broker_name for data in route.queues if route.master_of(data.broker_name) is None)
    if headless:  # whose slaves take nothing until one of them is elected
        names = ", ".join(headless)
        return Unavailable(f"no master of {names} is registered now, and nothing else carries topic {route.topic!r}")
    closed = sorted(data.broker_name for data in route.queues if not data.permission & Permission.WRITE)
    if closed:
        return NoPermission(
            f"topic {route.topic!r} is not writable now on {', '.join(closed)}: see the permission of the topic "
            f"(`minimq topic describe {route.topic}`) and of the broker (`minimq cluster status`)"
        )
    return TopicNotFound(f"no broker takes messages for topic {route.topic!r} now")


def _why_not(route: TopicRoute, queue: MessageQueue) -> MiniMQError:
    if route.master_of(queue.broker_name) is None:
        return Unavailable(f"broker {queue.broker_name} of queue {queue} has no master that is registered just now")
    data = next((data for data in route.queues if data.broker_name == queue.broker_name), None)
    if data is not None and not data.permission & Permission.WRITE:
        return NoPermission(f"queue {queue} is not writable now: its topic or its broker is read-only")
    count = data.write_queues if data is not None else 0
    return QueueNotFound(f"there is no queue {queue} to write to: its broker has {count} of that topic")
