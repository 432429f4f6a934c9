"""Channels to servers, one for each address, on one event loop; their certificates may change meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

import grpc
import grpc.aio

from minimq_common import rpc
from minimq_common.security.channel_security import PLAIN, ChannelSecurity

if TYPE_CHECKING:
    from minimq_common.security.certificates import Trust

Stub = TypeVar("Stub")
Request = TypeVar("Request")
Response = TypeVar("Response")

#: Options of channels to brokers.
BROKER_OPTIONS: Mapping[str, int] = dict(rpc.CHANNEL_OPTIONS)

#: Options of channels to name servers.
NAMESERVER_OPTIONS: Mapping[str, int] = {
    **BROKER_OPTIONS,
    # A watch is silent while nothing changes: only pings tell a name server that hangs from one that has no news. One
    # that leaves a ping unanswered loses its streams, within two seconds.
    "grpc.keepalive_time_ms": 1_000,
    "grpc.keepalive_timeout_ms": 1_000,
    "grpc.http2.ping_timeout_ms": 1_000,  # by which newer versions of gRPC go
    "grpc.http2.max_pings_without_data": 0,
}


class Channels(Generic[Stub]):
    """The channels to servers of one role. Used on one event loop only.

    A channel is made when its address is first asked for, and another one when certificates have changed since.

    Args:
        make_stub: makes the stub of a channel.
        options: of the channels.
        security: of the channels.
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
        self._channels: dict[str, tuple[grpc.aio.Channel, Stub, Trust | None]] = {}
        #: Channels of former certificates, with the calls that go on over them: few, since certificates last for weeks.
        self._former: list[grpc.aio.Channel] = []

    def stub(self, address: str) -> Stub:
        """Return the stub that calls a server.

        Args:
            address: HOST:PORT.
        """
        trust = self._security.trust()
        known = self._channels.get(address)
        if known is not None and known[2] is trust:
            return known[1]
        if known is not None:
            self._former.append(known[0])
        channel = rpc.open_aio_channel(address, trust, self._options)
        stub = self._make_stub(channel)
        self._channels[address] = channel, stub, trust
        return stub

    async def call(
        self,
        address: str,
        method: Callable[[Stub], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        timeout_s: float,
    ) -> Response:
        """Return the answer to a call, which is repeated if it was refused for credentials that were replaced since.

        Args:
            address: HOST:PORT.
            method: picks the method of a stub.
            request: of the call.
            timeout_s: seconds that one try may take.

        Raises:
            grpc.aio.AioRpcError: as gRPC does.
        """
        while True:
            stub = self.stub(address)
            try:
                return await method(stub)(request, timeout=timeout_s)
            except grpc.aio.AioRpcError as failure:
                if failure.code() is not grpc.StatusCode.UNAUTHENTICATED or not self.is_outdated(address, stub):
                    raise

    def is_outdated(self, address: str, stub: Stub) -> bool:
        """Return whether the next `stub` for an address has newer credentials than one that was refused.

        Args:
            address: HOST:PORT.
            stub: of the refused call. Another call may have opened the newer channel since.
        """
        known = self._channels.get(address)
        return known is None or known[1] is not stub or self._security.trust(at_once=True) is not known[2]

    def trust(self) -> Trust | None:
        """Return what the next channel is opened with; None without TLS."""
        return self._security.trust()

    def addresses(self) -> list[str]:
        """Return the addresses to which there is a channel."""
        return list(self._channels)

    async def aclose(self) -> None:
        """Do as `close`."""
        await self.close()

    async def close(self) -> None:
        """End all channels, and the calls on them."""
        channels = [*self._former, *(channel for channel, _, _ in self._channels.values())]
        self._channels.clear()
        self._former.clear()
        for channel in channels:
            await channel.close()
