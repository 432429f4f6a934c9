"""Selection of the queue for the next batch: a writable one, at a healthy broker whose window has room."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from minimq.connection.broker_troubles import SLOW_S, BrokerTroubles, choose_brokers
from minimq.sending.pending_batch import Target
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.statistics import Exclusion
from minimq_common.errors import MinimqError, NoPermission, QueueNotFound, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue, Permission, TopicRoute
from minimq_common.names import machine_room_of


class _WritableRoute:
    """The writable part of a route, computed once, with the position of the round robin."""

    __slots__ = ("addresses", "brokers", "near", "next", "preferred", "route", "targets", "targets_by_queue")

    def __init__(
        self, route: TopicRoute, rooms: frozenset[str], begin: Callable[[int], int], after: int | None
    ) -> None:
        self.route = route
        queues = route.write_queues()
        self.targets = [Target(queue, route.master_of(queue.broker_name) or "") for queue in queues]
        self.targets_by_queue = {target.queue: target for target in self.targets}
        self.addresses = {target.queue.broker_name: target.address for target in self.targets}
        self.brokers = tuple(self.addresses)
        self.near = tuple(name for name in self.brokers if machine_room_of(name) in rooms)
        self.preferred = self.near or self.brokers
        self.next = after if after is not None else begin(len(queues)) if queues else 0


class QueueSelector:
    """Selects queues in turn, counts requests in flight, and avoids brokers that fail or are slow."""

    def __init__(
        self,
        known: Callable[[str], TopicRoute | None],
        options: ProducerOptions,
        chance: random.Random,
        troubles: BrokerTroubles,
    ) -> None:
        #: Returns the known route of a topic, without I/O.
        self._known = known
        self._chance = chance
        self._troubles = troubles
        self._max_in_flight = options.max_in_flight_requests
        self._machine_rooms = frozenset(options.machine_rooms)
        self._avoids_faults = options.fault_avoidance
        self._under_way: dict[str, int] = {}  # requests by broker name
        self._full = 0  # number of brokers whose window is full
        self._brokers: set[str] = set()  # of all routes used so far
        self._writable: dict[str, _WritableRoute] = {}

    # ---- choosing -------------------------------------------------------------------------------

    def take(
        self, topic: str, queue: MessageQueue | None, avoid: str | None, may_move: bool, now: float
    ) -> Target | None:
        """Select a target and reserve a place in its window until `release`; None if full. Raises if not writable.

        With `may_move`, another queue of the same broker takes the place of a removed one.
        """
        route = self._known(topic)
        writable = self._writable.get(topic)
        if writable is None or writable.route is not route:
            writable = self._writable_of(topic)
            if writable is None:
                raise TopicNotFound(
                    f"topic {topic!r} does not exist any more: create it with `minimq topic create {topic}`"
                )
        if queue is None:
            target = self._in_turn(writable, avoid, now)
        else:
            target = writable.targets_by_queue.get(queue)
            if target is None and may_move:
                target = writable.targets_by_queue.get(writable.route.present(queue))
            if target is None:
                raise _why_not(writable.route, queue)
            if not self.has_room(queue.broker_name):
                return None
        if target is not None:
            name = target.queue.broker_name
            under_way = self._under_way[name] = self._under_way.get(name, 0) + 1
            if under_way == self._max_in_flight:
                self._full += 1
        return target

    def is_known(self, topic: str) -> bool:
        return self._known(topic) is not None

    def has_room(self, broker: str | None) -> bool:
        """Return whether the window of a broker has room; for None, whether any may have."""
        if broker is None:
            return not self._brokers or self._full < len(self._brokers)
        return self._under_way.get(broker, 0) < self._max_in_flight

    def capacity(self, topic: str) -> int:
        """Return how many batches of a topic may be in flight at once, each to another queue; at least 1."""
        writable = self._writable_of(topic)
        return (
            max(1, min(len(writable.targets), self._max_in_flight * len(writable.brokers)))
            if writable is not None
            else 1
        )

    def has_other(self, topic: str, broker: str | None, now: float) -> bool:
        """Return whether a healthy broker other than this one takes messages of a topic."""
        writable = self._writable_of(topic)
        return writable is not None and any(
            name != broker and self._is_well(writable, name, now) for name in writable.brokers
        )

    def _in_turn(self, writable: _WritableRoute, avoid: str | None, now: float) -> Target | None:
        targets = writable.targets
        if not targets:
            raise _why_nowhere(writable.route)
        brokers = writable.preferred
        if avoid is not None or (self._troubles.known and self._avoids_faults):
            brokers = self._choose(writable, avoid, now)
        count = len(targets)
        for step in range(writable.next, writable.next + count):
            target = targets[step % count]
            name = target.queue.broker_name
            if name in brokers and (not self._full or self.has_room(name)):
                writable.next = (step + 1) % count
                return target
        return None

    def _choose(self, writable: _WritableRoute, avoid: str | None, now: float) -> tuple[str, ...]:
        self._troubles.forget_old(now)
        # Use distant brokers if all near ones are in trouble.
        is_near_usable = any(name != avoid and self._is_well(writable, name, now) for name in writable.near)
        return choose_brokers(
            writable.near if is_near_usable else writable.brokers,
            lambda name: not self._is_well(writable, name, now),
            lambda name: self._avoids_faults and self._troubles.is_silent(writable.addresses[name]),
            avoid,
        )

    def _is_well(self, writable: _WritableRoute, name: str, now: float) -> bool:
        return not self._avoids_faults or self._troubles.trouble(writable.addresses[name], now) is None

    def _writable_of(self, topic: str) -> _WritableRoute | None:
        route = self._known(topic)
        if route is None:
            return None
        known = self._writable.get(topic)
        if known is None or known.route is not route:
            after = known.next if known is not None else None
            known = self._writable[topic] = _WritableRoute(route, self._machine_rooms, self._chance.randrange, after)
            self._brokers.update(known.brokers)
        return known

    # ---- outcomes -------------------------------------------------------------------------------

    def release(self, target: Target, latency_s: float = 0.0, now: float = 0.0) -> None:
        """Free a place in the window. `latency_s` is that of an acknowledged batch; 0 if the attempt failed."""
        broker = target.queue.broker_name
        under_way = self._under_way[broker]
        self._full -= under_way == self._max_in_flight
        self._under_way[broker] = under_way - 1
        if latency_s >= SLOW_S and self._avoids_faults:
            self._troubles.measured(target.address, latency_s, now)

    def failed(self, target: Target, error: MinimqError, took_s: float, now: float) -> None:
        self._troubles.failed(target.address, error, took_s, now)

    def avoided(self, now: float) -> tuple[Exclusion, ...]:
        """Return the brokers that are avoided now, sorted by name. Thread-safe."""
        found = {}
        for writable in [*self._writable.values()] if self._avoids_faults else ():
            for name, address in writable.addresses.items():
                if (known := self._troubles.trouble(address, now)) is not None:
                    until = math.inf if known.is_silent else known.until
                    found[name] = Exclusion(name, known.since, until, known.reason, known.is_silent)
        return tuple(found[name] for name in sorted(found))


def _why_nowhere(route: TopicRoute) -> MinimqError:
    headless = sorted(data.broker_name for data in route.queues if route.master_of(data.broker_name) is None)
    if headless:  # their slaves accept no messages until one is elected
        names = ", ".join(headless)
        return Unavailable(f"no master of {names} is registered now, and nothing else carries topic {route.topic!r}")
    closed = sorted(data.broker_name for data in route.queues if not data.permission & Permission.WRITE)
    if closed:
        return NoPermission(
            f"topic {route.topic!r} is not writable now on {', '.join(closed)}: see the permission of the topic "
            f"(`minimq topic describe {route.topic}`) and of the broker (`minimq cluster status`)"
        )
    return TopicNotFound(f"no broker takes messages for topic {route.topic!r} now")


def _why_not(route: TopicRoute, queue: MessageQueue) -> MinimqError:
    name = queue.broker_name
    if route.master_of(name) is None:
        state = "is offline: start it"
        if any(absent.broker_name == name and absent.lacks_topics for absent in route.offline):
            state = (
                f"is online but does not have topic {queue.topic}: restore its data directory, or create the topic "
                f"with `minimq topic create {queue.topic} --broker {name}`"
            )
        forget = f", or enter `minimq cluster delete-broker {name}`: then its keys move to other brokers"
        return Unavailable(f"broker {name} of queue {queue} {state}{'' if route.key_queues else forget}")
    data = next((data for data in route.queues if data.broker_name == queue.broker_name), None)
    if data is not None and not data.permission & Permission.WRITE:
        return NoPermission(f"queue {queue} is not writable now: its topic or its broker is read-only")
    count = data.write_queues if data is not None else 0
    return QueueNotFound(f"there is no queue {queue} to write to: its broker has {count} of that topic")
