"""The gRPC service of replication: what slaves and copies call."""

# ruff: noqa: D102 - names, meaning and context are those of the .proto file and of its stubs

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from minimq_broker.replication.backup import Snapshots
from minimq_broker.replication.frames import SILENCE_S
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

    async def _serve(self, requests: AsyncIterator[replication_pb2.ReplicaRequest], context: Any) -> None:
        try:
            async with asyncio.timeout(SILENCE_S):
                first = await anext(aiter(requests), None)
        except TimeoutError:
            raise InvalidArgument(f"nothing was asked for within {SILENCE_S} s") from None
        match first and first.WhichOneof("first"):
            case "snapshot":
                await self._snapshots.send(context)
            case "follow":
                assert first is not None
                await self._feed(first.follow, requests, context)
            case "fetch":
                assert first is not None
                await self._leadership(first.fetch.log).send_entries(first.fetch, context)
            case _:
                raise InvalidArgument("the first request says who follows, or asks for a copy")

    async def _feed(
        self,
        follow: replication_pb2.Follow,
        requests: AsyncIterator[replication_pb2.ReplicaRequest],
        context: Any,
    ) -> None:
        await self._leadership(follow).serve(follow, requests, context)

    def _leadership(self, follow: replication_pb2.Follow) -> Leadership:
        own = f"{self._broker_name} of cluster {self._cluster}"
        if (follow.cluster, follow.broker_name) != (self._cluster, self._broker_name):
            raise InvalidArgument(f"{follow.broker_name} of cluster {follow.cluster} does not follow {own}")
        leadership = self._roles.leadership if self._roles is not None else None
        if leadership is None:
            raise NotMaster(f"this broker does not lead {own}")
        return leadership
