"""Channels to servers: as many per address as its streams need, replaced when certificates or DNS records change."""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import grpc
import grpc.aio

from minimq_common.errors import SystemBusy
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire import rpc

if TYPE_CHECKING:
    from minimq_common.security.certificates import Trust

#: Minimum seconds between two DNS lookups of a name whose channel is not connected.
_LOOK_UP_S = 0.5
#: Seconds for which the calls on a replaced channel may continue.
_GRACE_S = 60.0
#: Streams on one channel. A server lets calls wait beyond 256 on one connection, common proxies beyond 100: the rest is
#: for calls without a stream.
STREAMS_PER_CHANNEL = 64
#: Streams to one server, over all channels.
MAX_STREAMS = 4_096
_SEEKING = (grpc.ChannelConnectivity.CONNECTING, grpc.ChannelConnectivity.TRANSIENT_FAILURE)

Stub = TypeVar("Stub")
Request = TypeVar("Request")
Response = TypeVar("Response")

#: Options of channels to brokers.
BROKER_OPTIONS: Mapping[str, int] = dict(rpc.CHANNEL_OPTIONS)

#: Options of channels to name servers.
NAMESERVER_OPTIONS: Mapping[str, int] = {
    **BROKER_OPTIONS,
    # A watch is silent while nothing changes, so only a ping detects a name server that hangs: its streams fail within
    # two seconds.
    "grpc.keepalive_time_ms": 1_000,
    "grpc.keepalive_timeout_ms": 1_000,
    "grpc.http2.ping_timeout_ms": 1_000,  # replaces `keepalive_timeout_ms` in newer versions of gRPC
    "grpc.http2.max_pings_without_data": 0,
}


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


@dataclass(slots=True, eq=False)
class _Channel(Generic[Stub]):
    channel: grpc.aio.Channel
    stub: Stub
    trust: Trust | None
    streams: int = 0


class TooManyStreams(SystemBusy):
    """This process has as many streams to a server as it may have: waiting for the server does not help."""


class Channels(Generic[Stub]):
    """The channels to the servers of one role. Belongs to one event loop.

    Opens a channel at the first use of an address, and a further one when all others are full of streams. Replaces it
    when certificates have changed, or when it is not connected and its name now resolves to another host: gRPC would
    try the old host for many seconds.
    """

    def __init__(
        self,
        make_stub: Callable[[grpc.aio.Channel], Stub],
        options: Mapping[str, int] = BROKER_OPTIONS,
        security: ChannelSecurity = PLAIN,
    ) -> None:
        self._make_stub = make_stub
        self._options = tuple(options.items())
        self._security = security
        #: By address and number; unary calls use number 0.
        self._channels: dict[tuple[str, int], _Channel[Stub]] = {}
        #: By address and number: the hosts found by the last DNS lookup, and the time of its start.
        self._hosts: dict[tuple[str, int], tuple[frozenset[str] | None, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Channels with former certificates, kept for their running calls. They are few: certificates last for weeks.
        self._former: list[grpc.aio.Channel] = []

    def stub(self, address: str) -> Stub:
        """Return the stub for a server, opening or replacing its channel if necessary."""
        return self._open(address, 0).stub

    @contextmanager
    def stream_stub(self, address: str) -> Iterator[Stub]:
        """Yield the stub for one stream, which is counted until the end of the block. Raises `TooManyStreams`."""
        for number in range(MAX_STREAMS // STREAMS_PER_CHANNEL):
            chosen = self._open(address, number)
            if chosen.streams < STREAMS_PER_CHANNEL:
                break
        else:
            raise TooManyStreams(
                f"this Cluster has {MAX_STREAMS:,} streams to {address}, which is its limit: use another Cluster for "
                "further clients"
            )
        chosen.streams += 1
        try:
            yield chosen.stub
        finally:
            chosen.streams -= 1

    def _open(self, address: str, number: int) -> _Channel[Stub]:
        trust = self._security.trust()
        known = self._channels.get((address, number))
        if known is not None and known.trust is trust:
            self._look_up(address, number, known.channel)
            return known
        if known is not None:
            self._former.append(known.channel)
        channel = rpc.open_aio_channel(address, trust, self._options)
        opened = self._channels[address, number] = _Channel(channel, self._make_stub(channel), trust)
        self._look_up(address, number, channel, is_new=True)
        return opened

    async def call(
        self,
        address: str,
        method: Callable[[Stub], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        timeout_s: float,
    ) -> Response:
        """Make a unary call. Repeats it if the server rejected credentials that have been replaced meanwhile."""
        while True:
            stub = self.stub(address)
            try:
                return await method(stub)(request, timeout=timeout_s)
            except grpc.aio.AioRpcError as failure:
                if failure.code() is not grpc.StatusCode.UNAUTHENTICATED or not self.is_outdated(address, stub):
                    raise

    def is_outdated(self, address: str, stub: Stub) -> bool:
        """Return whether there are newer credentials for an address than those of a stub that was rejected."""
        known = (each for (opened, _), each in self._channels.items() if opened == address and each.stub is stub)
        current = next(known, None)
        return current is None or self._security.trust(at_once=True) is not current.trust

    def _look_up(self, address: str, number: int, channel: grpc.aio.Channel, *, is_new: bool = False) -> None:
        host, now = address.rpartition(":")[0].strip("[]"), asyncio.get_running_loop().time()
        hosts, at = self._hosts.get((address, number), (None, -math.inf))
        if _is_number(host) or now - at < _LOOK_UP_S or not (is_new or channel.get_state() in _SEEKING):
            return
        self._hosts[address, number] = None if is_new else hosts, now
        self._begin(self._compare((address, number), host, channel))

    async def _compare(self, key: tuple[str, int], host: str, channel: grpc.aio.Channel) -> None:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except OSError:  # once the name resolves, the channel is replaced: gRPC's own retries have a growing backoff
            found = []
        hosts = frozenset(str(place[0]) for *_, place in found)
        before, at = self._hosts[key]
        self._hosts[key] = hosts, at
        known = self._channels.get(key)
        if hosts and before is not None and hosts != before and known is not None and known.channel is channel:
            del self._channels[key]
            self._begin(channel.close(_GRACE_S))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def trust(self) -> Trust | None:
        """Return the TLS settings for the next channel; None without TLS."""
        return self._security.trust()

    async def aclose(self) -> None:
        """Close all channels, and cancel the calls on them."""
        channels = [*self._former, *(each.channel for each in self._channels.values())]
        self._channels.clear()
        self._former.clear()
        for task in [*self._tasks]:
            task.cancel()
        for channel in channels:
            await channel.close()
