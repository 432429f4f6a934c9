"""Queries to name servers: to any one of them, or to all."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from minimq.connection.master_calls import is_busy, tried
from minimq.connection.offline_brokers import ClusterView, check_route, merge, view_from_wire
from minimq_common.errors import (
    ConnectionMismatch,
    InternalError,
    InvalidArgument,
    MinimqError,
    SystemBusy,
    TransportError,
    Unavailable,
)
from minimq_common.model import BrokerData, TopicRoute
from minimq_common.names import check_address
from minimq_common.wire import rpc
from minimq_common.wire.bound_check import check_answer
from minimq_common.wire.channels import Channels
from minimq_common.wire.convert import route_from_wire
from minimq_proto.v1 import nameserver_pb2

if TYPE_CHECKING:
    from minimq_common.security.certificates import Trust
    from minimq_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

Request = TypeVar("Request")
Response = TypeVar("Response")
T = TypeVar("T")

Method = Callable[["NameServerAsyncStub"], "grpc.aio.UnaryUnaryMultiCallable[Request, Response]"]

#: Default timeout of a query with all its attempts.
DEFAULT_TIMEOUT_S = 5.0

#: Timeout of one name server when all are queried.
_ANSWER_S = 1.0


class _NoAnswerError(Exception):
    """A name server gave no answer or an impossible one; the text says why."""


class NameServers:
    """All name servers of a cluster. Used on the event loop of the connection; `preferred` by any thread."""

    def __init__(self, addresses: Sequence[str], channels: Channels[NameServerAsyncStub]) -> None:
        if not addresses:
            raise InvalidArgument("no name server is given: pass the address of at least one, HOST:PORT")
        self.addresses = tuple(dict.fromkeys(check_address(address) for address in addresses))
        self._channels = channels
        #: Return the stub of an address, and whether the credentials were replaced since a stub was created.
        self.stub, self.has_new_key = channels.stub, channels.is_outdated
        #: The address that is tried first; random, to spread clients over the name servers.
        self.preferred = random.choice(self.addresses)

    def avoid(self, address: str) -> None:
        """Prefer the next name server if this one is preferred."""
        if self.preferred == address:
            index = self.addresses.index(address) + 1
            self.preferred = self.addresses[index % len(self.addresses)]

    # ---- queries to any of them -----------------------------------------------------------------

    async def route(self, topic: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> TopicRoute:
        def read(answer: nameserver_pb2.GetRoutesResponse) -> TopicRoute:
            if [route.topic for route in answer.routes] != [topic]:
                names = ", ".join(route.topic for route in answer.routes[:2])
                raise InvalidArgument(f"the route of {names} when asked for that of {topic}")
            return check_route(route_from_wire(answer.routes[0]))

        request = nameserver_pb2.GetRoutesRequest(topic=topic)
        return await self.ask(lambda stub: stub.GetRoutes, request, read, timeout_s)

    async def topics(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[TopicRoute]:
        """Return the routes of all topics, sorted by topic; one whose brokers are all offline has no queues."""

        def read(answer: nameserver_pb2.GetRoutesResponse) -> list[TopicRoute]:
            return [route_from_wire(route) for route in answer.routes]

        return await self.ask(lambda stub: stub.GetRoutes, nameserver_pb2.GetRoutesRequest(), read, timeout_s)

    async def topic_names(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[str]:
        """Return the names of all topics, sorted, also of offline brokers. Raises as `ask` does."""

        def read(answer: nameserver_pb2.GetRoutesResponse) -> list[str]:
            return list(answer.names)

        request = nameserver_pb2.GetRoutesRequest(names_only=True)
        return await self.ask(lambda stub: stub.GetRoutes, request, read, timeout_s)

    async def cluster(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[BrokerData]:
        """Return all brokers, sorted by name. Raises as `ask` does."""
        request = nameserver_pb2.GetClusterRequest()
        view = await self.ask(lambda stub: stub.GetCluster, request, view_from_wire, timeout_s)
        return list(view.brokers)

    async def ask(
        self, method: Method[Request, Response], request: Request, read: Callable[[Response], T], timeout_s: float
    ) -> T:
        """Query one name server after the other until one succeeds."""
        return await tried(partial(self._ask_any, method, request, read), timeout_s, again=is_busy)

    async def _ask_any(
        self, method: Method[Request, Response], request: Request, read: Callable[[Response], T], timeout_s: float
    ) -> T:
        deadline = time.monotonic() + timeout_s
        rejection: MinimqError | None = None
        silent: dict[str, str] = {}
        untried = self._in_order()
        while untried:
            # An equal share of the remaining time, so that a name server that hangs leaves time for the others.
            share_s = max(0.001, (deadline - time.monotonic()) / len(untried))
            address = untried.pop(0)
            try:
                answer = await self._ask_one(address, method, request, read, share_s)
            except _NoAnswerError as silence:
                silent[address] = str(silence)
            except MinimqError as error:
                rejection = _more_retriable(rejection, error)
            else:
                if silent:
                    self.preferred = address
                return answer
        raise rejection or _no_answer_error({address: silent[address] for address in self.addresses})

    async def _ask_one(
        self,
        address: str,
        method: Method[Request, Response],
        request: Request,
        read: Callable[[Response], T],
        timeout_s: float,
    ) -> T:
        peer = f"name server {address}"
        try:
            answer = await self._channels.call(address, method, request, timeout_s)
        except grpc.aio.AioRpcError as failure:
            error = rpc.from_rpc_error(failure, peer)
            if isinstance(error, TransportError):
                raise _NoAnswerError(await self._why_silent(address, failure, timeout_s)) from None
            raise error from None
        try:
            return read(check_answer(answer, peer))
        except (InvalidArgument, InternalError) as error:  # the answer is invalid: not a name server, or a broken one
            raise _NoAnswerError(f"its answer is invalid: {error.message}") from None

    # ---- queries to all of them -----------------------------------------------------------------

    async def brokers_of_all(self, *, settled: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[BrokerData]:
        """Return the brokers that the responding name servers know together, sorted by name; empty if none responds."""

        async def look(_: float) -> list[BrokerData]:
            views = await self.views()
            if not settled or not views or any(view.settled for view in views.values()):
                return merge(views.values())
            raise SystemBusy(
                f"name server {', '.join(views)} has just started and waits for its brokers: it is not known yet "
                "which ones there are; nothing was changed, try again",
                retry_after_s=0.0,
            )

        return await tried(look, timeout_s, again=is_busy)

    async def views(self) -> dict[str, ClusterView]:
        return {address: view_from_wire(answer) for address, answer in (await self.clusters()).items()}

    async def clusters(self) -> dict[str, nameserver_pb2.GetClusterResponse]:
        answers = await asyncio.gather(*map(self.cluster_of, self.addresses), return_exceptions=True)
        clusters = {}
        for address, answer in zip(self.addresses, answers, strict=True):
            if isinstance(answer, nameserver_pb2.GetClusterResponse):
                clusters[address] = answer
            elif not isinstance(answer, TransportError):
                raise answer
        return clusters

    async def cluster_of(self, address: str) -> nameserver_pb2.GetClusterResponse:
        request = nameserver_pb2.GetClusterRequest()
        return await tried(
            lambda _: self.call(address, lambda stub: stub.GetCluster, request, _ANSWER_S), _ANSWER_S, again=is_busy
        )

    async def call(
        self, address: str, method: Method[Request, Response], request: Request, timeout_s: float
    ) -> Response:
        peer = f"name server {address}"
        try:
            return check_answer(await self._channels.call(address, method, request, timeout_s), peer)
        except grpc.aio.AioRpcError as failure:
            raise rpc.from_rpc_error(failure, peer) from None

    async def _why_silent(self, address: str, failure: grpc.aio.AioRpcError, waited_s: float) -> str:
        code, details = rpc.status_of(failure)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"no answer within {waited_s:.1f} s"
        known = rpc.was_closed(details) and await why_closed(address, self._channels.trust())
        return known or rpc.why_unreached(details)

    def _in_order(self) -> list[str]:
        first = self.addresses.index(self.preferred)
        return [*self.addresses[first:], *self.addresses[:first]]


def _more_retriable(rejection: MinimqError | None, other: MinimqError) -> MinimqError:
    if rejection is None or isinstance(other, SystemBusy) or (other.retriable and not rejection.retriable):
        return other
    return rejection


def _no_answer_error(silent: Mapping[str, str]) -> Unavailable:
    if rpc.LASTING_REASONS.issuperset(silent.values()):
        tried = "; ".join(f"{address}: {reason}" for address, reason in silent.items())
        return ConnectionMismatch(f"no connection to name server {tried}")
    start = f": start one with `minimq-nameserver --listen {next(iter(silent))}`, or check the address"
    if rpc.NO_TLS_REASONS.issuperset(silent.values()):  # they are running, and the reasons include a remedy
        start = ""
    if len(silent) > 1:
        tried = "; ".join(f"{address}: {reason}" for address, reason in silent.items())
        return Unavailable(f"none of {len(silent)} name servers answers ({tried}){start}")
    [(address, reason)] = silent.items()
    if reason == rpc.NOTHING_LISTENS:
        return Unavailable(f"no name server listening at {address}{start}")
    return Unavailable(f"the name server at {address} does not answer ({reason}){start}")


# ---- why a server closes each connection, which gRPC does not say ------------------------------------


async def why_closed(address: str, trust: Trust | None) -> str:
    """Return why a server closes each connection as soon as it is opened; empty if unknown."""
    if trust is None:
        return "" if await _first_byte(address) is None else rpc.WANTS_TLS
    if trust.pair is None and await _first_byte(address) == b"" and await _first_byte(address) == b"":
        return rpc.WANTS_CERTIFICATE  # checked twice: a server that shuts down closes a connection, too, but only once
    return ""


async def _first_byte(address: str) -> bytes | None:
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()  # no key is sent, so the server need not be authenticated
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
            try:
                return await reader.read(1)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
