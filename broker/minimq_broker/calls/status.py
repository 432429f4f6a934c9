"""The calls about the broker itself: status, promotion, and its permission for all topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from minimq_broker.calls.administration import log_change
from minimq_broker.calls.engine import Engine
from minimq_broker.calls.topics import check_permission
from minimq_broker.commit.changes import AdminChange
from minimq_broker.state.facts import PermissionSet
from minimq_proto.v1 import broker_pb2

#: By `DiskLevel`.
_DISK_LEVELS = broker_pb2.DiskLevel.values()


@dataclass(frozen=True, slots=True)
class Identity:
    cluster: str
    broker_name: str
    broker_id: int
    version: str
    started_ms: int


class StatusService:
    def __init__(self, engine: Engine, identity: Identity, replication: Replication) -> None:
        self._engine = engine
        self._identity = identity
        self._replication = replication

    async def describe(self, _: broker_pb2.GetStatusRequest) -> broker_pb2.GetStatusResponse:
        identity, counters = self._identity, self._engine.counters
        status = broker_pb2.GetStatusResponse(
            cluster=identity.cluster,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            version=identity.version,
            started_ms=identity.started_ms,
            messages_in=counters.messages_in,
            messages_out=counters.messages_out,
            segments_deleted=counters.segments_deleted,
            bytes_deleted=counters.bytes_deleted,
            bytes_deleted_early=counters.bytes_deleted_early,
            disk_filled_by_others=counters.disk_filled_by_others,
            store_failed=self._engine.store.status.has_failed,
            replication=self._replication.tell(),
        )
        if self._engine.store.is_readable:
            self._tell_store(status)
        return status

    def _tell_store(self, status: broker_pb2.GetStatusResponse) -> None:
        store = self._engine.store
        disk, level = store.disk.latest
        status.MergeFrom(
            broker_pb2.GetStatusResponse(
                log_start=store.log.start,
                log_end=store.state.position,
                segments=len(store.log.segments),
                disk_bytes=store.log.disk_bytes,
                commits=store.writer.figures.commits,
                slow_sync_ms=round(store.writer.figures.syncs.slow_s * 1000),
                permission=store.state.permission,
                disk_used_bytes=disk.used_bytes,
                disk_free_bytes=disk.free_bytes,
                disk_level=_DISK_LEVELS[level],
                stamps_ahead_ms=store.stamps_ahead_ms,
                clock_ahead_ms=round(self._engine.clock.ahead_s * 1000),
            )
        )

    async def promote(self, request: broker_pb2.PromoteRequest) -> broker_pb2.PromoteResponse:
        """Become the master of the replicas. Raises what `Replication.promote` raises."""
        before = self._replication.tell()
        term = await self._replication.promote(unclean=request.unclean)
        if term != before.term:
            how = "unclean promotion" if request.unclean else "promotion"
            old, new = f"master {before.master_id}, term {before.term}", f"master {before.replica_id}, term {term}"
            log_change(AdminChange(how, self._identity.broker_name, old, new))
        return broker_pb2.PromoteResponse(term=term)

    async def probe(self, _: broker_pb2.ProbeRequest) -> broker_pb2.ProbeResponse:
        """Answer once the writer has processed all earlier jobs; never while the disk hangs."""
        await self._engine.writes.record(lambda _: None, alone=False)
        return broker_pb2.ProbeResponse()

    async def set_permission(self, request: broker_pb2.SetPermissionRequest) -> broker_pb2.SetPermissionResponse:
        """Set the upper bound of the permission of all topics. Durable when this returns. Raises `InvalidArgument`."""
        fact = PermissionSet(check_permission(request.permission))
        await self._engine.writes.record(lambda _: fact)
        return broker_pb2.SetPermissionResponse(data_version=self._engine.versions.answered)


class Replication(Protocol):
    """The replication status of a broker, and its promotion."""

    def tell(self) -> broker_pb2.ReplicationStatus:
        """Return the replication status of the broker and its replicas."""

    async def promote(self, *, unclean: bool) -> int:
        """Become the master, and return the term."""
