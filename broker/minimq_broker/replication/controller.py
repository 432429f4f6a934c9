"""The controller, which decides which replica is the master, as a broker sees it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from minimq_broker.replication.etcd_controller import EtcdController
from minimq_broker.replication.grpc_controller import GrpcController
from minimq_common.errors import InvalidArgument
from minimq_common.names import check_address
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from minimq_common.security.channel_security import PLAIN, ChannelSecurity

_ETCD, _ETCD_WITH_TLS = "etcd://", "etcds://"


class Controller(Protocol):
    """Keeps the record of a replica set. Not thread-safe: it lives on one event loop.

    Every call may fail with a `TransportError`: then it may have been carried out all the same, and may be repeated.
    """

    async def report(self, report: ReplicaReport, *, wait_s: float = 0.0) -> ReplicaSet | None:
        """Report that a replica is alive; return the record, and whether its master is alive.

        When the record names this run of this replica as its master, the lease of that term runs for `lease_s` of the
        record from the moment *before* this was called. Any other answer, and any error, renews nothing.

        Several reports in the time of a lease keep it and show that the replica lives.
        """

    async def change_in_sync(self, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
        """Replace the in-sync set and return the new record; only for the master, and repeatable."""

    async def promote(self, cluster: str, broker_name: str, replica_id: int, *, unclean: bool = False) -> ReplicaSet:
        """Make a replica the master, and return the new record. Takes about the time of a lease."""

    async def close(self) -> None:
        """End the connections; calls in progress fail. Idempotent."""


def parse(
    text: str,
    *,
    term_lease_s: float = 3.0,
    security: ChannelSecurity = PLAIN,
    etcd_security: ChannelSecurity = PLAIN,
) -> Controller:
    """Return the controller that an option names; nothing is connected before the first call."""
    if text.startswith((_ETCD, _ETCD_WITH_TLS)):
        addresses = text.removeprefix(_ETCD).removeprefix(_ETCD_WITH_TLS).rstrip("/").split(",")
        return EtcdController([check_address(part.strip()) for part in addresses], term_lease_s, etcd_security)
    if "://" in text or "," in text:
        raise InvalidArgument(f"{text!r} names no controller: write HOST:PORT, or etcd://HOST:PORT[,HOST:PORT]")
    return GrpcController(check_address(text), security)
