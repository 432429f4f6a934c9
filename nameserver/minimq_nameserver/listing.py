"""The topics of a name server as they are listed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minimq_common.errors import InvalidArgument
from minimq_common.slices import slices
from minimq_nameserver.bounds import MAX_ANSWER_BYTES
from minimq_nameserver.route_events import RouteEvents
from minimq_nameserver.route_table import RouteTable
from minimq_proto.v1 import nameserver_pb2

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
