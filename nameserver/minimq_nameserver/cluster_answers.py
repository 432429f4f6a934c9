"""The answers of a name server about all that it knows: brokers that are registered, away or refused, and topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.security.shared_access import SharedAccess
from minimq_common.serving.periodic import slices
from minimq_common.wire.convert import to_wire
from minimq_nameserver.away import RememberedBroker
from minimq_nameserver.bounds import MAX_ANSWER_BYTES
from minimq_nameserver.conflicts import Conflict
from minimq_nameserver.route_events import RouteEvents
from minimq_nameserver.route_table import RouteTable
from minimq_proto.v1 import nameserver_pb2


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
