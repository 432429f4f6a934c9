"""The topics of a name server as they are listed: made in slices, one list at a time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from minimq_common.errors import InvalidArgument
from minimq_nameserver.bounds import MAX_ANSWER_BYTES
from minimq_nameserver.loop_share import LoopShare
from minimq_nameserver.route_events import RouteEvents
from minimq_nameserver.route_table import RouteTable
from minimq_nameserver.table_tidying import TableTidying
from minimq_proto.v1 import nameserver_pb2

#: Names that are sorted, or encoded, in one go.
_PART = 500
#: Names for which the rights of a caller are looked at in one go.
_FILTERED_PART = 50
#: Where the key of `routes` stands in an encoded answer, and that of `away_routes`.
_ROUTES, _AWAY_ROUTES = b"\x0a", b"\x1a"


class TopicLists:
    """Answers to `ListTopics`. Lives on one event loop.

    Whoever asks gets the latest list, if nothing has changed since it was made. Lists are made one after the other,
    so a hundred who ask at once take no more memory than one does.
    """

    def __init__(self, table: RouteTable, events: RouteEvents, tidying: TableTidying) -> None:
        self._table = table
        self._tidying = tidying
        self._events = events
        self._share = LoopShare()
        self._latest: tuple[tuple[int, bool], bytes] | None = None

    async def get(self, *, names_only: bool, sees: Callable[[str], bool] | None = None) -> bytes:
        """Return the encoded answer: names or routes of all topics, sorted; each route as it was at some moment."""
        async with self._share:
            # Looked at when it is our turn: nobody gets a list that is older than the question.
            make = self._names if names_only else self._routes
            if sees is not None:
                await self._tidying.finish()
                topics = await self._sorted(await self._seen(self._table.topics(), sees))
                return await make(topics, await self._sorted(await self._seen(await self._away_topics(), sees)))
            key = self._table.edition, names_only
            if self._latest is None or self._latest[0] != key:
                self._latest = None
                await self._tidying.finish()
                topics = await self._sorted(list(self._table.topics()))
                away = await self._sorted(await self._away_topics())
                self._latest = key, await make(topics, away)
            return self._latest[1]

    async def _seen(self, topics: Iterable[str], sees: Callable[[str], bool]) -> list[str]:
        found: list[str] = []
        rest = iter(list(topics))
        while part := list(itertools.islice(rest, _FILTERED_PART)):
            found += filter(sees, part)
            await self._share.turn()
        return found

    async def _away_topics(self) -> list[str]:
        found: dict[str, None] = {}
        topics = self._table.away_topics()
        while part := list(itertools.islice(topics, _PART)):
            found.update(dict.fromkeys(part))
            await self._share.turn()
        return list(found)

    async def _sorted(self, topics: list[str]) -> Sequence[str]:
        parts = []
        for start in range(0, len(topics), _PART):
            parts.append(sorted(topics[start : start + _PART]))
            await self._share.turn()
        merged: list[str] = []
        rest: Iterator[str] = heapq.merge(*parts)
        while part := list(itertools.islice(rest, _PART)):
            merged += part
            await self._share.turn()
        return merged

    async def _names(self, topics: Sequence[str], away: Sequence[str]) -> bytes:
        # Encoded messages one after the other are the message that has the items of all.
        encoded = bytearray()
        for start in range(0, len(topics), _PART):
            encoded += nameserver_pb2.ListTopicsResponse(names=topics[start : start + _PART]).SerializeToString()
            await self._share.turn()
        for start in range(0, len(away), _PART):
            encoded += nameserver_pb2.ListTopicsResponse(away_names=away[start : start + _PART]).SerializeToString()
            await self._share.turn()
        return bytes(encoded)

    async def _routes(self, topics: Sequence[str], away: Sequence[str]) -> bytes:
        encoded = bytearray()
        for topic in itertools.chain(topics, away):
            event = self._events.make(topic)
            if event.queues:
                encoded += event.encoded
            elif event.away:
                encoded += _AWAY_ROUTES + event.encoded[len(_ROUTES) :]
            if len(encoded) > MAX_ANSWER_BYTES:
                raise InvalidArgument(
                    f"the routes of {len(topics)} topics are more than {MAX_ANSWER_BYTES >> 20} MiB: list the "
                    "names, and request the routes that you need"
                )
            await self._share.turn()
        return bytes(encoded)
