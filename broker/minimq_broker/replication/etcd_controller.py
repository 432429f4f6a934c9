"""The controller as a record in etcd, which every replica changes by the same rules."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from minimq_common.replica_set import ReplicaSet, Report


class EtcdController:
    """Keeps the record in etcd. See the protocol `Controller` for what its methods promise.

    Args:
        endpoints: HOST:PORT of each member of etcd.
        term_lease_s: length of the leases of masters.
    """

    def __init__(self, endpoints: Sequence[str], term_lease_s: float) -> None:
        self._endpoints = tuple(endpoints)
        self._term_lease_s = term_lease_s

    async def report(self, report: Report, *, known_version: int = 0, wait_s: float = 0.0) -> ReplicaSet | None:
        """Say that a replica lives, and return the record."""
        raise NotImplementedError

    async def change_in_sync(self, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
        """Replace the in-sync set and return the record as it is then."""
        raise NotImplementedError

    async def promote(self, cluster: str, broker_name: str, replica_id: int, *, unclean: bool = False) -> ReplicaSet:
        """Make a replica the master, and return the record that says so."""
        raise NotImplementedError

    async def close(self) -> None:
        """End the connections; calls under way fail."""
