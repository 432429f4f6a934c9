"""The controller that a name server serves."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, cast

import grpc

from minimq_common.errors import InvalidArgument, MiniMQError
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire import rpc
from minimq_common.wire.channels import Channels
from minimq_common.wire.convert import to_wire
from minimq_common.wire.values import replica_set_from_wire
from minimq_proto.v1 import controller_pb2, controller_pb2_grpc

if TYPE_CHECKING:
    from minimq_proto.v1.controller_pb2_grpc import ControllerAsyncStub

#: Timeout of an answer in seconds, in addition to the time for which it is held back.
_PATIENCE_S = 1.0
#: Seconds that a promotion may take: the time of a long lease.
_PROMOTION_S = 60.0


class GrpcController:
    """A controller in a name server. See the protocol `Controller` for what its methods promise."""

    def __init__(self, address: str, security: ChannelSecurity = PLAIN) -> None:
        self._address = address
        self._channels: Channels[ControllerAsyncStub] = Channels(
            lambda channel: cast("ControllerAsyncStub", controller_pb2_grpc.ControllerStub(channel)), security=security
        )

    async def report(self, report: ReplicaReport, *, wait_s: float = 0.0) -> ReplicaSet | None:
        """Report that a replica is alive; return the record, and whether its master is alive."""
        request = to_wire(controller_pb2.ReportRequest, report, wait_ms=round(wait_s * 1000))
        try:
            response = await self._stub().Report(request, timeout=wait_s + _PATIENCE_S)
        except grpc.RpcError as error:
            raise self._what_failed(error) from None
        return replica_set_from_wire(response.replica_set) if response.HasField("replica_set") else None

    async def change_in_sync(self, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
        """Replace the in-sync set and return the new record."""
        request = controller_pb2.ChangeInSyncRequest(
            known=to_wire(controller_pb2.ReplicaSet, known), in_sync=sorted(in_sync)
        )
        try:
            response = await self._stub().ChangeInSync(request, timeout=_PATIENCE_S)
        except grpc.RpcError as error:
            raise self._what_failed(error) from None
        return replica_set_from_wire(response.replica_set)

    async def promote(self, cluster: str, broker_name: str, replica_id: int, *, unclean: bool = False) -> ReplicaSet:
        """Make a replica the master, and return the new record."""
        request = controller_pb2.PromoteReplicaRequest(
            cluster=cluster, broker_name=broker_name, replica_id=replica_id, unclean=unclean
        )
        try:
            response = await self._stub().Promote(request, timeout=_PROMOTION_S)
        except grpc.RpcError as error:
            raise self._what_failed(error) from None
        return replica_set_from_wire(response.replica_set)

    async def close(self) -> None:
        """End the connection; calls in progress fail."""
        await self._channels.close()

    def _what_failed(self, error: grpc.RpcError) -> MiniMQError:
        if rpc.status_of(error)[0] is grpc.StatusCode.UNIMPLEMENTED:
            return InvalidArgument(
                f"name server {self._address} is no controller: start it with --controller-dir DIR, or name another one"
            )
        return rpc.from_rpc_error(error, f"controller {self._address}")

    def _stub(self) -> ControllerAsyncStub:
        return self._channels.stub(self._address)
