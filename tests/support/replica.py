"""One of several replicas in this process: an engine that gets its roles from a controller, and its streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from minimq_broker.backup.copying import Snapshots
from minimq_broker.calls.engine import Engine
from minimq_broker.replication.controller import parse
from minimq_broker.replication.in_sync import InSyncLimits
from minimq_broker.replication.roles import RoleKeeper, new_run
from minimq_broker.replication.service import ReplicationService
from minimq_common.replicas.replica_set import ReplicaReport
from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import Dispatcher, methods_of
from minimq_proto.v1 import replication_pb2
from support.replica_engine import replica_engine

CLUSTER, NAME = "c", "broker-a"


@dataclass(frozen=True)
class Replica:
    """A replica that runs."""

    engine: Engine
    roles: RoleKeeper

    @property
    def in_sync(self) -> frozenset[int]:
        """The replicas in sync, as the master knows them; none when this is not the master."""
        return self.roles.leadership.in_sync.members if self.roles.leadership else frozenset()


@asynccontextmanager
async def replica(
    path: Path,
    controller: str,
    replica_id: int,
    advertise: Callable[[str], str] = lambda address: address,
    **options: Any,
) -> AsyncIterator[Replica]:
    """Run a replica of `NAME`, which others reach where it says; only replica 0 founds a replica set."""
    async with replica_engine(path, **options) as engine:
        server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
        address = await rpc.bind(server, "127.0.0.1:0")
        shown = advertise(address)
        own = ReplicaReport(
            cluster=CLUSTER,
            broker_name=NAME,
            replica_id=replica_id,
            run=new_run(),
            address=shown,
            founds=not replica_id,
            sync=False,
            min_in_sync=1,
        )
        roles = RoleKeeper(engine, own, parse(controller), InSyncLimits(), lambda: None)
        engine.writes.rejection = roles.rejection
        engine.log_listeners.append(roles.log_grew)
        service = ReplicationService(CLUSTER, NAME, roles, Snapshots(engine.store, engine.unsent))
        dispatcher, replication = Dispatcher(), replication_pb2.DESCRIPTOR.services_by_name["Replication"]
        dispatcher.add(replication, methods_of(replication, service))
        server.add_generic_rpc_handlers((dispatcher,))
        await server.start()
        roles.start()
        try:
            yield Replica(engine, roles)
        finally:
            await roles.stop()
            await server.stop(None)


async def until(condition: Callable[[], object]) -> None:
    """Wait for something on the loop; the test has a limit for all it waits for."""
    while not condition():  # noqa: ASYNC110 - another task's doing, which tells nobody
        await asyncio.sleep(0.01)
