"""A broker's access to the controller, which decides which replica is the master."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import grpc

from minimq_broker.options import ETCD, controller_addresses
from minimq_broker.replication.etcd_controller import EtcdController
from minimq_common.errors import InvalidArgument
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire import rpc
from minimq_common.wire.channels import Channels
from minimq_common.wire.convert import replica_set_from_wire, to_wire
from minimq_proto.v1 import controller_pb2, controller_pb2_grpc

if TYPE_CHECKING:
    from minimq_proto.v1.controller_pb2_grpc import ControllerAsyncStub

#: Timeout of an answer, in addition to the time for which the controller may hold it back.
_TIMEOUT_S = 1.0
#: Timeout of a promotion, which takes about as long as a lease.
_PROMOTION_S = 60.0


Answer = TypeVar("Answer")


class Controller(Protocol):
    """Keeps the record of a replica set. Lives on one event loop.

    A call that fails with a `TransportError` may have been carried out all the same. All calls may be repeated.
    """

    async def report(self, report: ReplicaReport, *, wait_s: float = 0.0) -> ReplicaSet | None:
        """Report that a replica is alive, and return the record; None if there is none yet.

        If the record names this run of this replica the master, its lease lasts `lease_s` of the record from the moment
        *before* the call. No other answer, and no error, renews it. Replicas report several times per lease.

        The answer may be held back for up to `wait_s` seconds while there is no news.
        """

    async def change_in_sync(self, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
        """Replace the in-sync set and return the new record. Only for the master."""

    async def promote(self, cluster: str, broker_name: str, replica_id: int, *, unclean: bool = False) -> ReplicaSet:
        """Make a replica the master, and return the new record. Takes about as long as a lease."""

    async def close(self) -> None:
        """Close the connections; calls in progress fail. Idempotent."""


class GrpcController:
    """The controller in a name server. The protocol `Controller` documents its methods."""

    def __init__(self, address: str, security: ChannelSecurity = PLAIN) -> None:
        self._address = address
        self._channels: Channels[ControllerAsyncStub] = Channels(
            lambda channel: cast("ControllerAsyncStub", controller_pb2_grpc.ControllerStub(channel)), security=security
        )

    async def report(self, report: ReplicaReport, *, wait_s: float = 0.0) -> ReplicaSet | None:
        request = to_wire(controller_pb2.ReportRequest, report, wait_ms=round(wait_s * 1000))
        response = await self._answer(self._stub().Report(request, timeout=wait_s + _TIMEOUT_S))
        return replica_set_from_wire(response.replica_set) if response.HasField("replica_set") else None

    async def change_in_sync(self, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
        request = controller_pb2.ChangeInSyncRequest(
            known=to_wire(controller_pb2.ReplicaSet, known), in_sync=sorted(in_sync)
        )
        response = await self._answer(self._stub().ChangeInSync(request, timeout=_TIMEOUT_S))
        return replica_set_from_wire(response.replica_set)

    async def promote(self, cluster: str, broker_name: str, replica_id: int, *, unclean: bool = False) -> ReplicaSet:
        request = controller_pb2.PromoteReplicaRequest(
            cluster=cluster, broker_name=broker_name, replica_id=replica_id, unclean=unclean
        )
        response = await self._answer(self._stub().Promote(request, timeout=_PROMOTION_S))
        return replica_set_from_wire(response.replica_set)

    async def close(self) -> None:
        """Close the connection; calls in progress fail."""
        await self._channels.aclose()

    async def _answer(self, call: Awaitable[Answer]) -> Answer:
        try:
            return await call
        except grpc.RpcError as error:
            if rpc.status_of(error)[0] is grpc.StatusCode.UNIMPLEMENTED:
                raise InvalidArgument(
                    f"name server {self._address} is no controller: start it with --controller-dir DIR, or name "
                    "another one"
                ) from None
            raise rpc.from_rpc_error(error, f"controller {self._address}") from None

    def _stub(self) -> ControllerAsyncStub:
        return self._channels.stub(self._address)


def parse(
    text: str, *, term_lease_s: float = 3.0, security: ChannelSecurity = PLAIN, etcd_security: ChannelSecurity = PLAIN
) -> Controller:
    """Return the controller that an option names. Connects at the first call."""
    addresses = controller_addresses(text)
    if text.startswith(ETCD):
        return EtcdController(addresses, term_lease_s, etcd_security)
    return GrpcController(addresses[0], security)
