"""Who a broker is among the replicas of its name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """What a broker says of itself to its controller, and to its master; see `Report`."""

    cluster: str
    broker_name: str
    replica_id: int
    run: int
    address: str
    founds: bool
    sync: bool
    min_in_sync: int
