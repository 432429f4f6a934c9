"""Metrics of a broker about its replicas."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from minimq_common.serving.metrics import gauge, gauges
from minimq_proto.v1 import broker_pb2

_ROLES = {value: name.removeprefix("BROKER_ROLE_").lower() for name, value in broker_pb2.BrokerRole.items()}


def replication_metrics(prefix: str, status: broker_pb2.ReplicationStatus, log_end: int) -> Iterator[Metric]:
    """Yield the metrics that apply to the role that a broker has."""
    yield gauges(
        f"{prefix}_role",
        "1 for the role of the broker, 0 for the other roles.",
        ("role",),
        (((name,), value == status.role) for value, name in _ROLES.items()),
    )
    if status.role == broker_pb2.BROKER_ROLE_ALONE:
        return
    yield gauge(
        f"{prefix}_unconfirmed_bytes",
        "Bytes at the end of the log that are not confirmed by all replicas in sync.",
        max(0, log_end - status.confirmed),
    )
    yield gauge(
        f"{prefix}_controller_silent_seconds",
        "Time for which the controller has not answered; 0 while it does.",
        status.controller_silent_ms / 1000,
    )
    if status.role == broker_pb2.BROKER_ROLE_MASTER:
        yield from _of_master(prefix, status)
    if status.role == broker_pb2.BROKER_ROLE_SLAVE:
        yield gauge(f"{prefix}_master_connected", "Of a slave: 1 while it follows its master.", status.connected)
        if status.HasField("behind_bytes"):
            yield gauge(
                f"{prefix}_master_lag_bytes",
                "Of a slave: bytes of its master's log that it lacks.",
                status.behind_bytes,
            )


def _of_master(prefix: str, status: broker_pb2.ReplicationStatus) -> Iterator[Metric]:
    yield gauge(f"{prefix}_in_sync_replicas", "Of a master: replicas in sync, including itself.", len(status.in_sync))
    yield gauge(
        f"{prefix}_min_in_sync_replicas",
        "Of a master: replicas that must be in sync before it accepts a message.",
        status.min_in_sync if status.sync else 1,
    )
    yield gauge(
        f"{prefix}_lease_seconds", "Of a master: time for which it may serve without an answer.", status.lease_ms / 1000
    )
    yield gauge(
        f"{prefix}_by_replicas_seconds",
        "Of a master: time for which it has been serving by the confirmations of its replicas, without its controller.",
        status.by_replicas_ms / 1000,
    )
    replicas = [(str(replica.replica_id), replica) for replica in status.replicas]
    yield gauges(
        f"{prefix}_replica_connected",
        "Of a master: 1 while a slave follows it.",
        ("replica",),
        (((name,), replica.connected) for name, replica in replicas),
    )
    yield gauges(
        f"{prefix}_replica_lag_bytes",
        "Of a master: bytes of its log that a slave lacks.",
        ("replica",),
        (((name,), replica.behind_bytes) for name, replica in replicas),
    )
    yield gauges(
        f"{prefix}_replica_lag_seconds",
        "Of a master: time since a slave had the whole log.",
        ("replica",),
        (((name,), replica.behind_ms / 1000) for name, replica in replicas if replica.HasField("behind_ms")),
    )
