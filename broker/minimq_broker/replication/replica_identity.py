"""The identity of a broker among the replicas of its name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """The identity that a broker reports to its controller and its master; see `Report`."""

    cluster: str
    broker_name: str
    replica_id: int
    run: int
    address: str
    founds: bool
    sync: bool
    min_in_sync: int
