"""The role of a server that does not know a call: somebody may have given the address of another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import grpc
import grpc.aio

from minimq_common.wire import rpc

if TYPE_CHECKING:
    from minimq_common.errors import MiniMQError
    from minimq_common.security.certificates import Trust

Role = Literal["name server", "broker"]

#: Seconds that one question may take.
_ANSWER_S = 1.0
_SERVICES: dict[Role, str] = {"name server": "minimq.v1.NameServer", "broker": "minimq.v1.Broker"}
_REMEDIES: dict[Role, str] = {
    "name server": "give the address that brokers have as --nameserver, with port 9876 unless you have chosen another",
    "broker": "`minimq cluster status` shows the addresses of all brokers",
}
#: What gRPC says in place of the status of a stream that has ended before it was written to.
_STATUS_LOST: Final = "Internal error from Core"


async def explained(failure: grpc.RpcError, wanted: Role, address: str, trust: Trust | None) -> MiniMQError:
    """Return what a failed call means. A server that does not know the call is asked for its role."""
    error = rpc.from_rpc_error(failure, f"{wanted} {address}")
    status, details = rpc.status_of(failure)
    is_unknown = status is grpc.StatusCode.UNIMPLEMENTED
    if not is_unknown and details != _STATUS_LOST:
        return error
    found = await _role(address, trust)
    if not is_unknown and found in (None, wanted):
        return error
    if found is None:
        return error.with_message(f"{address} is no {wanted} of minimq: check the address")
    if found == wanted:
        return error.with_message(f"{wanted} {address} does not know this call: it is of an older release, upgrade it")
    return error.with_message(f"{address} is a {found}, not a {wanted}: {_REMEDIES[wanted]}")


async def _role(address: str, trust: Trust | None) -> Role | None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # for who has a wrong address

    async with rpc.open_aio_channel(address, trust) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for role, service in _SERVICES.items():
            try:
                await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=_ANSWER_S)
            except grpc.aio.AioRpcError:
                continue
            return role
    return None
