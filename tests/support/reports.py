"""Reports of replicas, for tests of what a controller makes of them."""

from __future__ import annotations

from typing import Any

from minimq_common.replicas.replica_set import ReplicaReport


def report(replica_id: int = 0, **other: Any) -> ReplicaReport:
    """Return the report of a replica of broker-a; its run is its id and one unless another is given."""
    values: dict[str, Any] = {
        "cluster": "default",
        "broker_name": "broker-a",
        "replica_id": replica_id,
        "run": replica_id + 1,
        "address": f"127.0.0.1:{10911 + replica_id}",
    }
    return ReplicaReport(**{**values, **other})
