"""The rebuild of a stopped slave with damaged data from its master."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc

from minimq_broker.log.data_dir import DataDirectory, Owner
from minimq_common.errors import BrokerConflict, InvalidArgument, NotMaster
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc

if TYPE_CHECKING:
    from minimq_proto.v1.broker_pb2_grpc import BrokerAsyncStub

_ANSWER_S = 10.0
#: Maximum time for the master to notice that the replica is gone, and to have that recorded.
_LEAVE_TIMEOUT_S = 30.0
_CHECK_INTERVAL_S = 0.2


async def rebuild(directory: Path, address: str, security: ChannelSecurity = PLAIN) -> None:
    """Mark the data of a stopped slave: its next start deletes the data, and copies everything from the master."""
    with closing(DataDirectory(directory, create=False, checks_format=False)) as held:
        await _wait_until_left(address, security, held.owner(), directory)
        held.mark_copying()


async def _wait_until_left(address: str, security: ChannelSecurity, owner: Owner, directory: Path) -> None:
    async with rpc.open_aio_channel(address, security.trust()) as channel:
        stub = cast("BrokerAsyncStub", broker_pb2_grpc.BrokerStub(channel))
        until = asyncio.get_running_loop().time() + _LEAVE_TIMEOUT_S
        while True:
            try:
                status = await stub.GetStatus(broker_pb2.GetStatusRequest(), timeout=_ANSWER_S)
            except grpc.RpcError as error:
                raise rpc.from_rpc_error(error, f"broker {address}") from None
            _check_master(status, address, owner, directory)
            if owner.id not in status.replication.in_sync:
                return
            if asyncio.get_running_loop().time() > until:
                raise BrokerConflict(
                    f"the master at {address} still counts replica {owner.id} among those in sync, though its data "
                    f"directory {directory} is not in use: does another process run as this replica? End it first"
                )
            await asyncio.sleep(_CHECK_INTERVAL_S)


def _check_master(status: broker_pb2.GetStatusResponse, address: str, owner: Owner, directory: Path) -> None:
    about = status.replication
    if (status.cluster, status.broker_name) != (owner.cluster, owner.name):
        raise InvalidArgument(
            f"{directory} is the data directory of {owner}, and the broker at {address} is {status.broker_name} of "
            f"cluster {status.cluster}: --source takes the master of {owner.name}"
        )
    if about.role == broker_pb2.BROKER_ROLE_ALONE:
        raise NotMaster(f"the broker at {address} has no replicas, as it runs without --controller")
    if about.master_id == owner.id and about.role != broker_pb2.BROKER_ROLE_UNDECIDED:
        raise NotMaster(
            f"{directory} is that of replica {owner.id}, which is the master of {owner.name} and may have data that "
            "no other replica has: rebuild it once another one is the master, see minimq cluster status and minimq "
            "cluster promote"
        )
    if about.role != broker_pb2.BROKER_ROLE_MASTER:
        where = f"which is at {about.master_address}" if about.master_address else "which minimq cluster status names"
        raise NotMaster(f"the broker at {address} is not the master of {owner.name}, {where}: rebuild from there")
