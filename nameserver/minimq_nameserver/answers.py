"""The answers of a name server as they are written: routes, lists of topics, and all that it knows of brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from minimq_common.errors import InvalidArgument
from minimq_common.model import TopicRoute
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.security.shared_access import SharedAccess
from minimq_common.serving.periodic import slices
from minimq_common.wire.convert import to_wire
from minimq_common.wire.values import route_to_wire
from minimq_nameserver.away import Conflict, RememberedBroker
from minimq_nameserver.bounds import MAX_ANSWER_BYTES
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


class ClusterAnswers:
    """Answers to `GetCluster`. The larger part is made once for each edition of the table."""

    def __init__(self, table: RouteTable, clock: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock
        #: What the clock shows, and the time of day at that moment: what is told of a moment never changes.
        self._began = clock(), time.time()
        self._latest: tuple[int, bytes] | None = None  # the brokers of that edition of the table

    def get(self, access: SharedAccess | None, *, settled: bool) -> bytes:
        """Return the encoded answer, as the present caller may see it."""
        if self._latest is None or self._latest[0] != self._table.edition:
            brokers = nameserver_pb2.GetClusterResponse(
                brokers=[to_wire(nameserver_pb2.BrokerData, broker) for broker in self._table.brokers()],
                versions=[
                    nameserver_pb2.RegisteredVersion(broker_name=name, broker_id=broker_id, data_version=version)
                    for (name, broker_id), version in self._table.versions().items()
                ],
                away=[self.away_to_wire(away, away.queues) for away in self._table.away()],
            )
            self._latest = self._table.edition, brokers.SerializeToString()
        may_see = current_caller().sees(Resource.CLUSTER, "")
        conflicts = self._table.conflicts(self._clock()) if may_see else []
        rest = nameserver_pb2.GetClusterResponse(
            conflicts=[self._conflict_to_wire(conflict) for conflict in conflicts],
            settled=settled,
            access_version=0 if access is None else access.rank.version,
            access_digest="" if access is None else access.rank.digest,
            access_only_reports=access is not None and access.only_reports,
        )
        # Encoded messages one after the other are the message that has the fields of both.
        return self._latest[1] + rest.SerializeToString()

    def away_to_wire(self, away: RememberedBroker, queues: int) -> nameserver_pb2.AwayBroker:
        """Return what is told of a broker that is away, and of its queues."""
        return nameserver_pb2.AwayBroker(
            broker=to_wire(nameserver_pb2.BrokerData, away.broker),
            since_ms=self._time_of_day_ms(away.since),
            stopped=away.stopped,
            queues=queues,
        )

    def _conflict_to_wire(self, conflict: Conflict) -> nameserver_pb2.BrokerConflictReport:
        return to_wire(
            nameserver_pb2.BrokerConflictReport,
            conflict,
            first_ms=self._time_of_day_ms(conflict.first_at),
            last_ms=self._time_of_day_ms(conflict.last_at),
        )

    def _time_of_day_ms(self, moment: float) -> int:
        began, began_at = self._began
        return round((began_at + moment - began) * 1000)


#: Where the key of `routes` stands in an encoded answer, and that of `away_routes`.
_ROUTES, _AWAY_ROUTES = b"\x0a", b"\x1a"


class TopicLists:
    """Answers to `ListTopics`. Lives on one event loop.

    Lists are made one after the other, and whoever asks gets the latest if nothing has changed since it was made.
    """

    def __init__(self, table: RouteTable, events: RouteEvents) -> None:
        self._table = table
        self._events = events
        self._making = asyncio.Lock()
        self._latest: tuple[tuple[int, bool], bytes] | None = None

    async def get(self, *, names_only: bool, sees: Callable[[str], bool] | None = None) -> bytes:
        """Return the encoded answer: names or routes of all topics, sorted; each route as it was at some moment."""
        async with self._making:
            key = self._table.edition, names_only
            if sees is None and self._latest is not None and self._latest[0] == key:
                return self._latest[1]
            topics, away = (
                sorted(filter(sees, names)) for names in (self._table.topics(), set(self._table.away_topics()))
            )
            if names_only:
                answer = nameserver_pb2.ListTopicsResponse(names=topics, away_names=away).SerializeToString()
            else:
                answer = await self._routes([*topics, *away])
            if sees is None:
                self._latest = key, answer
            return answer

    async def _routes(self, topics: list[str]) -> bytes:
        # Encoded messages one after the other are the message that has the items of all.
        encoded = bytearray()
        async for part in slices(topics):
            for event in map(self._events.get, part):
                if event.queues:
                    encoded += event.encoded
                elif event.away:
                    encoded += _AWAY_ROUTES + event.encoded[len(_ROUTES) :]
            if len(encoded) > MAX_ANSWER_BYTES:
                raise InvalidArgument(
                    f"the routes of {len(topics)} topics are more than {MAX_ANSWER_BYTES >> 20} MiB: list the "
                    "names, and request the routes that you need"
                )
        return bytes(encoded)
