"""The connection to a cluster: event loop, channels, routes, calls, and probes of unresponsive brokers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import grpc
import grpc.aio

from minimq.connection.broker_methods import BrokerMethods
from minimq.connection.broker_troubles import BrokerTroubles
from minimq.connection.loop_thread import LoopThread
from minimq.connection.master_calls import tried
from minimq.connection.name_servers import NameServers
from minimq.connection.routes import Routes
from minimq_common.batch.header import warn_of_slow_checksums
from minimq_common.errors import MinimqError, Unavailable
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire.bound_check import check_answer
from minimq_common.wire.channels import BROKER_OPTIONS, NAMESERVER_OPTIONS, Channels
from minimq_common.wire.rpc import from_rpc_error, status_of
from minimq_proto.v1 import broker_pb2
from minimq_proto.v1.nameserver_pb2_grpc import NameServerStub

if TYPE_CHECKING:
    from minimq_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

log = logging.getLogger(__name__)

_PROBE_TIMEOUT_S = 10.0
#: Probes of a broker that never answers. After these, it counts as responsive until a call fails.
_MAX_PROBES = 60

Key = TypeVar("Key", bound=Hashable)
Request = TypeVar("Request")
Response = TypeVar("Response")
#: Picks the method of a stub.
BrokerMethod = Callable[[BrokerMethods], "grpc.aio.UnaryUnaryMultiCallable[Request, Response]"]
#: Concurrent calls to one broker.
_MAX_CALLS_PER_BROKER = 32


class BrokerHealth(BrokerTroubles):
    """The troubles of brokers, for all clients of a connection; probes unresponsive ones. Thread-safe."""

    def __init__(self, loop: LoopThread, channels: Channels[BrokerMethods]) -> None:
        super().__init__()
        self._loop = loop
        self._channels = channels
        self._questions: dict[str, asyncio.Task[None]] = {}  # running probes by address; on the loop only

    def failed(self, address: str, error: MinimqError | None, took_s: float = 0.0, now: float | None = None) -> None:
        """Record that a request failed after `took_s` seconds, or that a stream ended normally. Does not block."""
        super().failed(address, error, took_s, time.monotonic() if now is None else now)

    def fell_silent(self, address: str) -> None:
        if not self._loop.call_soon(self._begin, address):
            self.answers(address)

    # ---- on the event loop ----------------------------------------------------------------------

    def _begin(self, address: str) -> None:
        if address not in self._questions:
            self._questions[address] = asyncio.create_task(self._wait_for(address))

    async def _wait_for(self, address: str) -> None:
        try:
            for _ in range(_MAX_PROBES):
                if await self._has_answered(address):
                    break
        finally:
            del self._questions[address]
            self.answers(address)

    async def _has_answered(self, address: str) -> bool:
        probe = self._channels.stub(address).Probe  # needs no permission; unanswered while the broker's disk hangs
        try:
            await probe(broker_pb2.ProbeRequest(), timeout=_PROBE_TIMEOUT_S, wait_for_ready=True)
        except grpc.aio.AioRpcError as failure:
            return status_of(failure)[0] is not grpc.StatusCode.DEADLINE_EXCEEDED
        return True


class BrokerCalls:
    """Calls to brokers. On the event loop of the connection only."""

    def __init__(self, channels: Channels[BrokerMethods]) -> None:
        self._channels = channels

    async def call(
        self,
        address: str,
        method: BrokerMethod[Request, Response],
        request: Request,
        timeout_s: float,
        reconnect_s: float = 0.0,
    ) -> Response:
        """Call one broker; retry for `reconnect_s` seconds while it is `Unavailable`."""

        async def attempt(_: float) -> Response:
            peer = f"broker {address}"
            try:
                return check_answer(await self._channels.call(address, method, request, timeout_s), peer)
            except grpc.aio.AioRpcError as failure:
                raise from_rpc_error(failure, peer) from None

        return await tried(attempt, reconnect_s, again=lambda error: isinstance(error, Unavailable) and error.retriable)

    async def call_all(
        self,
        addresses: Mapping[Key, str],
        method: BrokerMethod[Request, Response],
        requests: Mapping[Key, Request],
        timeout_s: float,
        reconnect_s: float = 0.0,
    ) -> tuple[dict[Key, Response], dict[Key, MinimqError]]:
        """Make calls concurrently; return answers and failures by key, in the order of `addresses`."""

        async def call(key: Key) -> Response:
            return await self.call(addresses[key], method, requests[key], timeout_s, reconnect_s)

        return await together({key: addresses[key] for key in addresses if key in requests}, call)


async def together(
    places: Mapping[Key, str], call: Callable[[Key], Awaitable[Response]]
) -> tuple[dict[Key, Response], dict[Key, MinimqError]]:
    """Make calls concurrently, limited for each place; return answers and failures by key, in the order of `places`."""
    room: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_MAX_CALLS_PER_BROKER))
    answers: dict[Key, Response] = {}
    failures: dict[Key, MinimqError] = {}

    async def make(key: Key) -> None:
        async with room[places[key]]:
            try:
                answers[key] = await call(key)
            except MinimqError as error:
                failures[key] = error

    async with asyncio.TaskGroup() as calls:
        for key in places:
            calls.create_task(make(key))
    return (
        {key: answers[key] for key in places if key in answers},
        {key: failures[key] for key in places if key in failures},
    )


class Connection(LoopThread):
    """Everything that the clients of one `Cluster` share."""

    def __init__(self, nameservers: Sequence[str], *, poll_s: float = 30.0, security: ChannelSecurity = PLAIN) -> None:
        super().__init__("minimq-cluster")
        warn_of_slow_checksums(log)
        self.security = security
        # gRPC has one stub class for plain and asyncio channels; only the type stubs distinguish them.
        self._nameserver_channels: Channels[NameServerAsyncStub] = Channels(
            lambda channel: cast("NameServerAsyncStub", NameServerStub(channel)), NAMESERVER_OPTIONS, security
        )
        self._broker_channels: Channels[BrokerMethods] = Channels(BrokerMethods, BROKER_OPTIONS, security)
        #: Return a block with the stub of a broker, for one stream, and whether the credentials were replaced since a
        #: stub was created. On the event loop only.
        self.broker_stub, self.has_new_key = self._broker_channels.stream_stub, self._broker_channels.is_outdated
        self.nameservers = NameServers(nameservers, self._nameserver_channels)
        self.brokers = BrokerCalls(self._broker_channels)
        self.health = BrokerHealth(self, self._broker_channels)
        self.routes = Routes(self, self.nameservers, poll_s)

    async def _finish(self) -> None:
        self.routes.ended()
        await self._nameserver_channels.aclose()
        await self._broker_channels.aclose()
