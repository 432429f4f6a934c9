"""Conversions between the protobuf messages of a controller and the values of `replica_set`."""

from __future__ import annotations

from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from minimq_common.wire.replica_bounds import check_record
from minimq_proto.v1 import controller_pb2


def replica_set_to_wire(replica_set: ReplicaSet) -> controller_pb2.ReplicaSet:
    """Return the message for a record."""
    return controller_pb2.ReplicaSet(
        cluster=replica_set.cluster,
        broker_name=replica_set.broker_name,
        term=replica_set.term,
        master_id=replica_set.master_id,
        master_run=replica_set.master_run,
        in_sync=sorted(replica_set.in_sync),
        version=replica_set.version,
        sync=replica_set.sync,
        min_in_sync=replica_set.min_in_sync,
        lease_ms=round(replica_set.lease_s * 1000),
        addresses=dict(replica_set.addresses),
        log_term=replica_set.log_term,
        log_id=replica_set.log_id,
        successor=replica_set.successor,
        common_end=replica_set.common_end,
        wait_ms=round(replica_set.wait_s * 1000),
    )


def replica_set_from_wire(message: controller_pb2.ReplicaSet) -> ReplicaSet:
    """Return the value for a record."""
    record = ReplicaSet(
        cluster=message.cluster,
        broker_name=message.broker_name,
        term=message.term,
        master_id=message.master_id,
        master_run=message.master_run,
        in_sync=frozenset(message.in_sync),
        version=message.version,
        sync=message.sync,
        min_in_sync=message.min_in_sync,
        lease_s=message.lease_ms / 1000,
        addresses=dict(sorted(message.addresses.items())),
        log_term=message.log_term,
        log_id=message.log_id,
        successor=message.successor if message.HasField("successor") else None,
        common_end=message.common_end,
        wait_s=message.wait_ms / 1000,
    )
    check_record(record)
    return record


def report_to_wire(report: ReplicaReport, wait_s: float) -> controller_pb2.ReportRequest:
    """Return the message for a report whose answer may be held back."""
    return controller_pb2.ReportRequest(
        cluster=report.cluster,
        broker_name=report.broker_name,
        replica_id=report.replica_id,
        run=report.run,
        address=report.address,
        founds=report.founds,
        sync=report.sync,
        min_in_sync=report.min_in_sync,
        last_term=report.last_term,
        log_end=report.log_end,
        log_id=report.log_id,
        resigns=report.resigns,
        common_end=report.common_end,
        known=replica_set_to_wire(report.known) if report.known else None,
        wait_ms=round(wait_s * 1000),
    )


def report_from_wire(message: controller_pb2.ReportRequest) -> ReplicaReport:
    """Return the value for a report."""
    return ReplicaReport(
        cluster=message.cluster,
        broker_name=message.broker_name,
        replica_id=message.replica_id,
        run=message.run,
        address=message.address,
        founds=message.founds,
        sync=message.sync,
        min_in_sync=message.min_in_sync,
        last_term=message.last_term,
        log_end=message.log_end,
        log_id=message.log_id,
        resigns=message.resigns,
        common_end=message.common_end if message.HasField("common_end") else None,
        known=replica_set_from_wire(message.known) if message.HasField("known") else None,
    )
