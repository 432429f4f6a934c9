"""The gRPC service of the name server: answers brokers and clients from one route table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from typing import Any

import grpc.aio

from minimq_common.errors import MinimqError, SystemBusy, TopicNotFound, TopicUnavailable, Unavailable
from minimq_common.names import check_broker, check_topic
from minimq_common.record_limit import ALWAYS_WRITTEN
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import retrieve
from minimq_common.wire.unsent import SMALL_BYTES, UnsentBudget
from minimq_nameserver.answers import Answers
from minimq_nameserver.bounds import MAX_UNSENT_BYTES
from minimq_nameserver.registrations import Registrations
from minimq_nameserver.route_table import RouteTable
from minimq_nameserver.watchers import Watcher, Watchers
from minimq_proto.v1 import nameserver_pb2

log = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext[Any, Any]

#: Retry delay for look-ups while brokers register again.
_BUSY_RETRY_S = 0.1
_STOPPING = "the name server stops"
#: Larger events count as unsent bytes. Smaller ones need little memory even for all watchers together.
_LARGE_BYTES = 4 << 10


class NameServerService:
    """Answers brokers and clients from one route table. Everything runs on one event loop, so nothing is locked."""

    def __init__(self, table: RouteTable, clock: Callable[[], float]) -> None:
        self.table = table
        self._answers = Answers(table, clock)
        self.unsent = UnsentBudget(MAX_UNSENT_BYTES)
        self.watchers = Watchers()
        self._settled = asyncio.Event()
        self._streams: set[rpc.LiveStream] = set()
        self._stopping = False
        #: Look-ups of one route. Any thread may read it.
        self.look_ups = 0
        self.registrations = Registrations(table, clock, self._changed, self._settled)

    # ---- state and end ---------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """True if a topic without a route does not exist. Any thread may read it."""
        return self._settled.is_set()

    def settle(self) -> None:
        """Treat topics without a route as nonexistent from now on, and start sending events to watchers."""
        self._settled.set()

    def end_streams(self) -> None:
        """End all streams because this name server stops. Watchers get no events of brokers that leave thereby."""
        self._stopping = True
        self.registrations.end(_STOPPING)
        for stream in self._streams:
            stream.end(Unavailable(_STOPPING))

    def _changed(self, topics: Collection[str]) -> None:
        self._answers.forget(topics)
        if not self._stopping:
            self.watchers.publish(topics)

    # ---- Brokers ---------------------------------------------------------------------------------

    async def Register(
        self, request_iterator: AsyncIterator[nameserver_pb2.RegisterRequest], context: _Context
    ) -> None:
        """Keep a broker in the table for as long as its stream lasts, or only check its place."""
        await self.registrations.keep(request_iterator, context)

    # ---- Clients ---------------------------------------------------------------------------------

    async def GetRoutes(self, request: nameserver_pb2.GetRoutesRequest, context: _Context) -> bytes:
        """Answer the route of one topic, or the names or routes of all. These may be from different moments."""
        if request.topic:
            return self._route(check_topic(request.topic))
        caller = current_caller()
        sees = None if caller.sees_all else partial(caller.sees, Resource.TOPIC)
        return await self._hand_out(lambda: self._answers.topics(names_only=request.names_only, sees=sees), context)

    def _route(self, topic: str) -> bytes:
        self.look_ups += 1
        route = self._answers.route(topic)
        if not route.queues and not route.offline:
            raise self._unknown(topic)
        return route.encoded

    def _unknown(self, topic: str) -> MinimqError:
        if not self.settled:
            text = f"topic {topic} is not known yet: this name server has just started and waits for its brokers"
            return SystemBusy(text, retry_after_s=_BUSY_RETRY_S)
        if not self.table.brokers():
            text = f"topic {topic} has no route: no broker is registered with this name server; start one with "
            return TopicUnavailable(text + "`minimq-broker --nameserver HOST:PORT`")
        return TopicNotFound.nowhere(topic)

    async def GetCluster(self, request: nameserver_pb2.GetClusterRequest, context: _Context) -> bytes:
        """Answer all brokers and their versions, sorted by name, and the conflicts of brokers."""
        return await self._hand_out(self._describe_cluster, context)

    async def _hand_out(self, make: Callable[[], Awaitable[bytes]], context: _Context) -> bytes:
        answer = await make()
        while len(answer) > SMALL_BYTES and not self.unsent.has_room(len(answer)):
            size = len(answer)
            del answer  # not kept in memory while waiting
            await self.unsent.room(size)
            answer = await make()
        if len(answer) > SMALL_BYTES:
            self._count_unsent(context, answer, asyncio.current_task())
        return answer

    def _count_unsent(self, context: _Context, answer: bytes, until: asyncio.Future[Any] | None) -> None:
        assert until is not None
        write = self.unsent.begin(context.peer(), len(answer))
        until.add_done_callback(lambda _: self.unsent.end(write))

    async def _describe_cluster(self) -> bytes:
        return self._answers.cluster(settled=self.settled)

    async def ForgetBroker(
        self, request: nameserver_pb2.ForgetBrokerRequest, context: _Context
    ) -> nameserver_pb2.ForgetBrokerResponse:
        is_forgotten = self.registrations.forget(check_broker(request.broker_name))
        if is_forgotten:
            text = "administration: broker forgotten name=%s old='offline' new='-' caller=%s client=- user=%s"
            address, user = rpc.address_of(context.peer()), current_caller().user or "-"
            log.info(text, request.broker_name, address, user, extra=ALWAYS_WRITTEN)
        return nameserver_pb2.ForgetBrokerResponse(forgotten=is_forgotten)

    async def WatchRoutes(
        self, request_iterator: AsyncIterator[nameserver_pb2.WatchRoutesRequest], context: _Context
    ) -> None:
        """Send the route of each watched topic now and after each change, until the client closes its side."""
        watcher = Watcher()
        self.watchers.add(watcher)
        writes: list[asyncio.Future[None]] = []
        telling = asyncio.create_task(self._tell(watcher, context, writes), name="nameserver-watch")
        telling.add_done_callback(retrieve)
        with rpc.LiveStream(self._streams):
            try:
                async for request in request_iterator:
                    await self.watchers.follow(watcher, request)
            finally:
                telling.cancel()
                self.watchers.remove(watcher)
                if writes:  # gRPC breaks a stream if a write is unfinished when the call ends
                    await asyncio.wait(writes)

    async def _tell(self, watcher: Watcher, context: _Context, writes: list[asyncio.Future[None]]) -> None:
        await self._settled.wait()
        while True:
            topic = await watcher.take()
            event = self._answers.route(topic).encoded
            if len(event) > _LARGE_BYTES:
                await self.unsent.room(len(event))
                event = self._answers.route(topic).encoded
            writes[:] = [asyncio.ensure_future(rpc.write(context, event))]
            if len(event) > _LARGE_BYTES:
                self._count_unsent(context, event, writes[0])
            await asyncio.shield(writes[0])
