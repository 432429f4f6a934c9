"""Channels to servers, one for each address, on one event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import grpc.aio

from minimq_common import rpc

Stub = TypeVar("Stub")

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
    """The channels of a connection to servers of one role. Used on its event loop only.

    A channel is made when its address is first asked for.

    Args:
        make_stub: makes the stub of a channel.
        options: of the channels.
    """

    def __init__(self, make_stub: Callable[[grpc.aio.Channel], Stub], options: Mapping[str, int]) -> None:
        self._make_stub = make_stub
        self._options = tuple(options.items())
        self._channels: dict[str, tuple[grpc.aio.Channel, Stub]] = {}

    def stub(self, address: str) -> Stub:
        """Return the stub that calls a server.

        Args:
            address: HOST:PORT.
        """
        if address not in self._channels:
            channel = grpc.aio.insecure_channel(address, options=self._options)
            self._channels[address] = channel, self._make_stub(channel)
        return self._channels[address][1]

    def addresses(self) -> list[str]:
        """Return the addresses to which there is a channel."""
        return list(self._channels)

    async def close(self) -> None:
        """End all channels, and the calls on them."""
        channels = [channel for channel, _ in self._channels.values()]
        self._channels.clear()
        for channel in channels:
            await channel.close()
