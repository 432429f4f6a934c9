"""The gRPC service of replication, for slaves and copies, and the replication status of a broker."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from typing import Any

from minimq_broker.backup.copying import Snapshots
from minimq_broker.commit.store import Store
from minimq_broker.replication.leadership import Leadership
from minimq_broker.replication.roles import RoleKeeper
from minimq_common.errors import BrokerConflict, DeadlineExceeded, InvalidArgument, MinimqError, NotMaster, StaleTerm
from minimq_proto.v1 import broker_pb2, replication_pb2

log = logging.getLogger(__name__)

#: Maximum time from the controller's decision until this broker leads.
_LEADS_TIMEOUT_S = 10.0


class ReplicationService:
    def __init__(self, cluster: str, broker_name: str, roles: RoleKeeper | None, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._cluster = cluster
        self._broker_name = broker_name
        self._roles = roles

    async def Replicate(self, requests: AsyncIterator[replication_pb2.ReplicaRequest], context: Any) -> None:
        try:
            await self._serve(requests, context)
        except MinimqError as error:
            level = logging.DEBUG if isinstance(error, NotMaster | StaleTerm | BrokerConflict) else logging.WARNING
            log.log(level, "replication: a stream is rejected or ended reason=%s", error)
            raise

    async def Snapshot(self, requests: AsyncIterator[replication_pb2.TakeSnapshot], context: Any) -> None:
        """Send a copy of the whole log and state."""
        if await anext(aiter(requests), None) is not None:
            await self._snapshots.send(context)

    async def _serve(self, requests: AsyncIterator[replication_pb2.ReplicaRequest], context: Any) -> None:
        first = await anext(aiter(requests), None)
        if first is not None and first.HasField("follow"):
            await self._leadership(first.follow).serve(first.follow, requests, context)
        else:
            raise InvalidArgument("the first request must be `follow`")

    def _leadership(self, follow: replication_pb2.Follow) -> Leadership:
        own = f"{self._broker_name} of cluster {self._cluster}"
        if (follow.cluster, follow.broker_name) != (self._cluster, self._broker_name):
            raise InvalidArgument(f"{follow.broker_name} of cluster {follow.cluster} does not follow {own}")
        leadership = self._roles.leadership if self._roles is not None else None
        if leadership is None:
            raise NotMaster(f"this broker does not lead {own}")
        return leadership


class ReplicationView:
    """The replication status of a broker, and its promotion."""

    def __init__(self, store: Store, roles: RoleKeeper | None) -> None:
        self._store = store
        self._roles = roles

    def tell(self) -> broker_pb2.ReplicationStatus:
        roles = self._roles
        if roles is None:
            return broker_pb2.ReplicationStatus(role=broker_pb2.BROKER_ROLE_ALONE, confirmed=self._store.status.end)
        status = broker_pb2.ReplicationStatus(
            role=broker_pb2.BROKER_ROLE_UNDECIDED,
            replica_id=roles.own.replica_id,
            confirmed=self._store.status.confirmed,
        )
        record = roles.record
        if record is not None:
            status.term, status.master_id = record.term, record.master_id
            status.master_address = record.master_address
            status.sync, status.min_in_sync = record.sync, record.min_in_sync
            status.in_sync.extend(sorted(record.in_sync))
        status.controller_silent_ms = round(roles.controller_silent_s * 1000)
        self._tell_role(status, roles)
        return status

    def _tell_role(self, status: broker_pb2.ReplicationStatus, roles: RoleKeeper) -> None:
        end = self._store.status.end
        if roles.leadership is not None:
            status.role = broker_pb2.BROKER_ROLE_MASTER
            status.lease_ms = round(roles.leadership.lease_left_s * 1000)
            status.by_replicas_ms = round(roles.leadership.by_replicas_s * 1000)
            for replica_id, progress in roles.leadership.progress().items():
                replica = status.replicas.add(
                    replica_id=replica_id,
                    connected=progress.connected,
                    position=progress.position,
                    behind_bytes=max(end - progress.position, 0),
                )
                if not math.isinf(progress.lag_s):
                    replica.behind_ms = round(progress.lag_s * 1000)
        elif roles.follower is not None:
            status.role = broker_pb2.BROKER_ROLE_SLAVE
            status.connected = roles.follower.connected
            if roles.follower.master_end is not None:
                status.behind_bytes = max(roles.follower.master_end - end, 0)

    async def promote(self, *, unclean: bool) -> int:
        if self._roles is None:
            raise InvalidArgument("this broker has no replicas: it was started without --controller")
        own, known = self._roles.own, self._roles.record
        record = await self._roles.controller.promote(own.cluster, own.broker_name, own.replica_id, unclean=unclean)
        try:
            async with asyncio.timeout(_LEADS_TIMEOUT_S):
                await self._roles.leads(record.term)
        except TimeoutError:
            raise DeadlineExceeded(
                f"replica {own.replica_id} was named the master of term {record.term}, but does not lead yet: "
                "minimq cluster status shows when it does"
            ) from None
        if unclean and known is not None and record.term > known.term:
            log.error(
                "replication: leading after an unclean promotion, acknowledged messages that this replica did not have "
                "are lost broker=%s cluster=%s replica=%d term=%d in_sync_before=%s",
                own.broker_name,
                own.cluster,
                own.replica_id,
                record.term,
                sorted(known.in_sync),
            )
        return record.term
