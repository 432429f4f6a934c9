"""The connection of a cluster: the event loop, the channels, the routes, and the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import grpc.aio

from minimq.connection.broker_calls import BrokerCalls
from minimq.connection.broker_health import BrokerHealth
from minimq.connection.loop_thread import LoopThread
from minimq.connection.name_servers import NameServers
from minimq.connection.routes import Routes
from minimq.transport.client_log import client_logger
from minimq_common.batch.header import warn_of_slow_checksums
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire.channels import BROKER_OPTIONS, NAMESERVER_OPTIONS, Channels
from minimq_proto.v1 import broker_pb2
from minimq_proto.v1.broker_pb2_grpc import BrokerStub
from minimq_proto.v1.nameserver_pb2_grpc import NameServerStub

if TYPE_CHECKING:  # at run time these are the plain stubs
    from minimq_proto.v1.broker_pb2_grpc import BrokerAsyncStub
    from minimq_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

log = client_logger(__name__)


class Connection(LoopThread):
    """All that clients share: made by a `Cluster`, used by each `ClusterClient`.

    Nothing is connected and no thread begins before the first question.
    """

    def __init__(self, nameservers: Sequence[str], *, poll_s: float = 30.0, security: ChannelSecurity = PLAIN) -> None:
        super().__init__("minimq-cluster", self._close_channels)
        warn_of_slow_checksums(log)
        self.security = security
        # The stubs of gRPC are the same classes for both kinds of channel; the types tell them apart.
        self._nameserver_channels: Channels[NameServerAsyncStub] = Channels(
            lambda channel: cast("NameServerAsyncStub", NameServerStub(channel)), NAMESERVER_OPTIONS, security
        )
        self._broker_channels: Channels[BrokerAsyncStub] = Channels(_broker_stub, BROKER_OPTIONS, security)
        self.nameservers = NameServers(nameservers, self._nameserver_channels)
        self.brokers = BrokerCalls(self._broker_channels)
        self.health = BrokerHealth(self, self._broker_channels)
        self.routes = Routes(self, self.nameservers, poll_s)

    def broker_stub(self, address: str) -> BrokerAsyncStub:
        """Return the stub of a broker, for streams; on the event loop only."""
        return self._broker_channels.stub(address)

    def has_new_key(self, address: str, stub: BrokerAsyncStub) -> bool:
        """Return whether the credentials were replaced since `stub` was made, which a broker has refused.

        On the event loop only.
        """
        return self._broker_channels.is_outdated(address, stub)

    async def _close_channels(self) -> None:
        self.routes.ended()
        await self._nameserver_channels.close()
        await self._broker_channels.close()


def _broker_stub(channel: grpc.aio.Channel) -> BrokerAsyncStub:
    """Return the stub of a broker, whose appends take requests that are encoded: each is given as its parts."""
    stub: Any = BrokerStub(channel)
    stub.Append = channel.stream_stream("/minimq.v1.Broker/Append", b"".join, broker_pb2.AppendResponse.FromString)
    stub.AppendAtomic = channel.stream_stream(
        "/minimq.v1.Broker/AppendAtomic", b"".join, broker_pb2.AtomicAppendResponse.FromString
    )
    return cast("BrokerAsyncStub", stub)
