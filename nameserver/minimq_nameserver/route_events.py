"""Routes of topics as they are written: made once, for all who ask and watch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from minimq_common.model import TopicRoute
from minimq_common.wire.values import route_to_wire
from minimq_nameserver.away import RememberedBroker
from minimq_nameserver.route_table import RouteTable
from minimq_proto.v1 import nameserver_pb2

#: Bytes of routes that are kept.
_KEPT_BYTES = 32 << 20

AwayToWire = Callable[[RememberedBroker, int], nameserver_pb2.AwayBroker]


class RouteEvent(NamedTuple):
    """The route of a topic."""

    #: A `RouteEvent`, and at the same time a `GetRouteResponse`, and a `ListTopicsResponse` with that route alone: in
    #: all of them the route has the number 1.
    encoded: bytes
    queues: bool
    away: bool


class RouteEvents:
    """The events of a route table. Lives on one event loop."""

    def __init__(self, table: RouteTable, away_to_wire: AwayToWire) -> None:
        self._table = table
        self._away_to_wire = away_to_wire
        self._kept: dict[str, RouteEvent] = {}
        self._kept_bytes = 0

    def get(self, topic: str) -> RouteEvent:
        """Return the route of a topic as it is now."""
        event = self._kept.get(topic)
        if event is None:
            event = self._make(topic)
            if event.queues:
                self._keep(topic, event)
        return event

    def forget(self, topics: Collection[str]) -> None:
        """Make the routes of these topics anew, since they have changed."""
        for topic in topics if len(topics) < len(self._kept) else [name for name in self._kept if name in topics]:
            event = self._kept.pop(topic, None)
            if event is not None:
                self._kept_bytes -= len(event.encoded)

    def _make(self, topic: str) -> RouteEvent:
        route = route_to_wire(self._table.route(topic) or TopicRoute(topic, (), {}))
        route.away.extend(self._away_to_wire(away, away.queues_of(topic)) for away in self._table.away(topic))
        encoded = nameserver_pb2.RouteEvent(route=route).SerializeToString()
        return RouteEvent(encoded, bool(route.queues), bool(route.away))

    def _keep(self, topic: str, event: RouteEvent) -> None:
        if self._kept_bytes > _KEPT_BYTES:
            self._kept.clear()
            self._kept_bytes = 0
        self._kept[topic] = event
        self._kept_bytes += len(event.encoded)
