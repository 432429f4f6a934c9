"""The gRPC service of replication: what slaves and copies call."""

# ruff: noqa: D102 - names, meaning and context are those of the .proto file and of its stubs

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

from minimq_broker.replication.backup import Snapshots
from minimq_broker.replication.leadership import Leadership
from minimq_broker.replication.roles import RoleKeeper
from minimq_common.errors import BrokerConflict, InvalidArgument, MiniMQError, NotMaster, StaleTerm
from minimq_proto.v1 import replication_pb2

log = logging.getLogger(__name__)


class ReplicationService:
    """Serves the log to slaves."""

    def __init__(self, cluster: str, broker_name: str, roles: RoleKeeper | None, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._cluster = cluster
        self._broker_name = broker_name
        self._roles = roles

    async def Replicate(self, requests: AsyncIterator[replication_pb2.ReplicaRequest], context: Any) -> None:
        try:
            await self._serve(requests, context)
        except MiniMQError as error:
            level = logging.DEBUG if isinstance(error, NotMaster | StaleTerm | BrokerConflict) else logging.WARNING
            log.log(level, "replication: a stream is refused or ended reason=%s", error)
            raise

    async def Snapshot(self, requests: AsyncIterator[replication_pb2.TakeSnapshot], context: Any) -> None:
        if await anext(aiter(requests), None) is not None:
            await self._snapshots.send(context)

    async def _serve(self, requests: AsyncIterator[replication_pb2.ReplicaRequest], context: Any) -> None:
        first = await anext(aiter(requests), None)
        if first is not None and first.HasField("follow"):
            await self._leadership(first.follow).serve(first.follow, requests, context)
        elif first is not None and first.HasField("fetch"):
            await self._leadership(first.fetch.log).send_entries(first.fetch, context)
        else:
            raise InvalidArgument("the first request says who follows")

    def _leadership(self, follow: replication_pb2.Follow) -> Leadership:
        own = f"{self._broker_name} of cluster {self._cluster}"
        if (follow.cluster, follow.broker_name) != (self._cluster, self._broker_name):
            raise InvalidArgument(f"{follow.broker_name} of cluster {follow.cluster} does not follow {own}")
        leadership = self._roles.leadership if self._roles is not None else None
        if leadership is None:
            raise NotMaster(f"this broker does not lead {own}")
        return leadership
