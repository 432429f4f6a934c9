"""Where the queues of a topic are on all brokers: fetched from the name servers, and cached for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import grpc

from minimq_common import rpc
from minimq_common.bound_check import check_answer
from minimq_common.channels import Channels
from minimq_common.errors import MiniMQError, SystemBusy, TopicNotFound, TransportError, Unavailable
from minimq_common.model import TopicRoute
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire import route_from_wire
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc

if TYPE_CHECKING:
    from minimq_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

#: For how long an answer is taken for true, in seconds: concurrent requests of members cost one query.
_FRESH_S = 1.0
#: How long one name server may take, in seconds.
_PATIENCE_S = 1.0


class RouteLookup:
    """Routes of topics. Not thread-safe: it belongs to one event loop."""

    def __init__(self, nameservers: Sequence[str], security: ChannelSecurity = PLAIN) -> None:
        self._nameservers = list(nameservers)
        self._channels: Channels[NameServerAsyncStub] = Channels(
            lambda channel: cast("NameServerAsyncStub", nameserver_pb2_grpc.NameServerStub(channel)), security=security
        )
        self._known: dict[str, tuple[float, TopicRoute | None]] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute | None]] = {}

    async def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, about a second old at most; None when no broker carries it.

        While no name server answers, the last known route is used.
        """
        now = asyncio.get_running_loop().time()
        known = self._known.get(topic)
        if known is not None and now < known[0] + _FRESH_S:
            return known[1]
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.create_task(self._ask(topic), name=f"route-{topic}")
            asking.add_done_callback(lambda _: self._asking.pop(topic, None))
        try:
            return await asyncio.shield(asking)
        except (TransportError, SystemBusy):
            if known is None:
                raise
            return self._keep(topic, known[1])  # for another while: the next caller does not have to wait as well

    async def close(self) -> None:
        """End the connections; queries in progress fail."""
        for task in list(self._asking.values()):
            task.cancel()
        await self._channels.close()

    async def _ask(self, topic: str) -> TopicRoute | None:
        request = nameserver_pb2.GetRouteRequest(topic=topic)
        error: MiniMQError = Unavailable("the broker has no name server to ask for routes")
        for address in list(self._nameservers):
            try:
                response = await self._channels.stub(address).GetRoute(request, timeout=_PATIENCE_S)
            except grpc.RpcError as failure:
                error = rpc.from_rpc_error(failure, f"name server {address}")
                if isinstance(error, TopicNotFound):
                    return self._keep(topic, None)
                self._nameservers.append(self._nameservers.pop(0))  # the next one is tried first from now on
            else:
                return self._keep(topic, route_from_wire(check_answer(response, f"name server {address}").route))
        raise error

    def _keep(self, topic: str, route: TopicRoute | None) -> TopicRoute | None:
        now = asyncio.get_running_loop().time()
        self._known = {name: known for name, known in self._known.items() if now < known[0] + 60 * _FRESH_S}
        self._known[topic] = now, route
        return route
