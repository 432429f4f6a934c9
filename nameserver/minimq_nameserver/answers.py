"""The encoded answers of a name server: routes, lists of topics, and the state of the cluster."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from minimq_common.errors import InvalidArgument
from minimq_common.model import Permission, TopicRoute
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.serving.periodic import slices
from minimq_common.wire.convert import route_to_wire, to_wire
from minimq_nameserver.bounds import MAX_ANSWER_BYTES
from minimq_nameserver.offline_brokers import RememberedBroker
from minimq_nameserver.route_table import Conflict, RouteTable
from minimq_proto.v1 import nameserver_pb2

#: Maximum bytes of cached routes.
_KEPT_BYTES = 32 << 20


class RouteAnswer(NamedTuple):
    #: A `RouteEvent` and one-route `GetRoutesResponse` alike: in both, field 1 is the route.
    encoded: bytes
    #: Whether the route has queues.
    queues: bool
    #: Whether the route has brokers that are offline.
    offline: bool


class Answers:
    """Answers from one route table. Encodes each route once for all clients. Lives on one event loop."""

    def __init__(self, table: RouteTable, clock: Callable[[], float]) -> None:
        self._table = table
        self._clock = clock
        #: The clock and the time of day at the start: converts moments so that their reported time never changes.
        self._began = clock(), time.time()
        self._run = random.SystemRandom().getrandbits(64)
        self._kept: dict[str, RouteAnswer] = {}
        self._kept_bytes = 0
        self._listing = asyncio.Lock()

    def route(self, topic: str) -> RouteAnswer:
        answer = self._kept.get(topic)
        if answer is None:
            answer = self._make(topic)
            if answer.queues:
                self._keep(topic, answer)
        return answer

    def forget(self, topics: Collection[str]) -> None:
        """Drop the cached routes of topics that have changed."""
        for topic in topics if len(topics) < len(self._kept) else [name for name in self._kept if name in topics]:
            answer = self._kept.pop(topic, None)
            if answer is not None:
                self._kept_bytes -= len(answer.encoded)

    def cluster(self, *, settled: bool) -> bytes:
        """Return the state of the cluster as the current caller may see it."""
        may_see = current_caller().sees(Resource.CLUSTER, "")
        conflicts = self._table.conflicts.recent(self._clock()) if may_see else []
        return nameserver_pb2.GetClusterResponse(
            brokers=[to_wire(nameserver_pb2.BrokerData, broker) for broker in self._table.brokers()],
            versions=[
                nameserver_pb2.RegisteredVersion(broker_name=name, broker_id=broker_id, data_version=version)
                for (name, broker_id), version in self._table.versions().items()
            ],
            offline=[self._offline_to_wire(offline) for offline in self._table.offline.all()],
            conflicts=[self._conflict_to_wire(conflict) for conflict in conflicts],
            settled=settled,
        ).SerializeToString()

    async def topics(self, *, names_only: bool, sees: Callable[[str], bool] | None = None) -> bytes:
        """Return names or routes of all topics, sorted. Routes may be from different moments."""
        topics = sorted(filter(sees, {*self._table.topics(), *self._table.offline_topics()}))
        if names_only:
            return nameserver_pb2.GetRoutesResponse(names=topics).SerializeToString()
        async with self._listing:  # one at a time, as each may be large
            return await self._list_routes(topics)

    async def _list_routes(self, topics: list[str]) -> bytes:
        # Concatenated protobuf messages are one message with the repeated fields of all.
        encoded = bytearray()
        async for part in slices(topics):
            for answer in map(self.route, part):
                if answer.queues or answer.offline:
                    encoded += answer.encoded
            if len(encoded) > MAX_ANSWER_BYTES:
                raise InvalidArgument(
                    f"the routes of {len(topics)} topics are more than {MAX_ANSWER_BYTES >> 20} MiB: list the "
                    "names, and request the routes that you need"
                )
        return bytes(encoded)

    def _make(self, topic: str) -> RouteAnswer:
        route = route_to_wire(self._table.route(topic) or TopicRoute(topic, (), {}))
        route.offline.extend(self._offline_to_wire(offline, topic) for offline in self._table.offline.of(topic))
        route.run = self._run
        encoded = nameserver_pb2.RouteEvent(route=route).SerializeToString()
        return RouteAnswer(encoded, bool(route.queues), bool(route.offline))

    def _keep(self, topic: str, answer: RouteAnswer) -> None:
        if self._kept_bytes > _KEPT_BYTES:
            self._kept.clear()
            self._kept_bytes = 0
        self._kept[topic] = answer
        self._kept_bytes += len(answer.encoded)

    def _offline_to_wire(self, offline: RememberedBroker, topic: str | None = None) -> nameserver_pb2.OfflineBroker:
        return nameserver_pb2.OfflineBroker(
            broker=to_wire(nameserver_pb2.BrokerData, offline.broker),
            since_ms=self._time_of_day_ms(offline.since),
            stopped=offline.stopped,
            queues=offline.queues(Permission.READ, topic),
            write_queues=offline.queues(Permission.WRITE, topic),
            lacks_topics=offline.lacks_topics,
        )

    def _conflict_to_wire(self, conflict: Conflict) -> nameserver_pb2.BrokerConflictReport:
        times = {"first_ms": self._time_of_day_ms(conflict.first_at), "last_ms": self._time_of_day_ms(conflict.last_at)}
        return to_wire(nameserver_pb2.BrokerConflictReport, conflict, **times)

    def _time_of_day_ms(self, moment: float) -> int:
        began, began_at = self._began
        return round((began_at + moment - began) * 1000)
