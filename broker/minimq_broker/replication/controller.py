"""The controller, which decides which replica is the master, as a broker sees it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from minimq_broker.replication.etcd_controller import EtcdController
from minimq_broker.replication.grpc_controller import GrpcController
from minimq_common.errors import InvalidArgument
from minimq_common.names import check_address
from minimq_common.replica_set import Answer, ReplicaReport, ReplicaSet
from minimq_common.security.channel_security import PLAIN, ChannelSecurity

_ETCD, _ETCD_WITH_TLS = "etcd://", "etcds://"


class Controller(Protocol):
    """Keeps the record of a replica set. Not thread-safe: it lives on one event loop.

    Every call may fail with a `TransportError`: then it may have been carried out all the same, and may be repeated.
    """

    async def report(self, report: ReplicaReport, *, wait_s: float = 0.0) -> Answer:
        """Report that a replica is alive; return the record, and whether its master is alive.

        When the record names this run of this replica as its master, the lease of that term runs for `lease_s` of the
        record from the moment *before* this was called. Any other answer, and any error, renews nothing.

        Several reports in the time of a lease keep it and show that the replica lives.

        Args:
            report: what the replica says; a record that it was told holds again if it was lost since.
            wait_s: how long the answer may be held back while the record is the one that it was told. With a sixth of
                the lease a change is learned at once, and the lease is renewed in time though a report or two are lost.

        Raises:
            TermEnding: it is the master, but another replica was promoted, and its lease is renewed no more.
            InvalidArgument: the report breaks a rule that the text names.
        """

    async def change_in_sync(self, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
        """Replace the in-sync set and return the new record; only for the master, and repeatable.

        Args:
            known: the latest record that it has got.
            in_sync: the new set.

        Raises:
            StaleTerm: it is no longer the master.
            ReplicaSetChanged: the record has changed otherwise; report, and ask again.
            InvalidArgument: the set lacks the master, or there is no record.
        """

    async def promote(self, cluster: str, broker_name: str, replica_id: int, *, unclean: bool = False) -> ReplicaSet:
        """Make a replica the master, and return the new record. Takes about the time of a lease.

        Args:
            cluster: the cluster.
            broker_name: the name of the broker.
            replica_id: one that reports.
            unclean: also when it is not in sync: entries that it lacks are lost.

        Raises:
            NotInSync: it is not in sync, and `unclean` is not given.
            ReplicaSetChanged: it was not elected: it fell silent, or another one was promoted.
            InvalidArgument: there is no record, or the replica does not report.
        """

    async def close(self) -> None:
        """End the connections; calls in progress fail. Idempotent."""


def parse(
    text: str,
    *,
    term_lease_s: float = 3.0,
    security: ChannelSecurity = PLAIN,
    etcd_security: ChannelSecurity = PLAIN,
) -> Controller:
    """Return the controller that an option names; nothing is connected before the first call.

    Args:
        text: HOST:PORT of a name server that was given a directory for it, or etcd://HOST:PORT[,HOST:PORT];
            etcds:// for TLS.
        term_lease_s: length of the leases of masters with etcd; a name server has an option of its own for it.
        security: of the connection to a name server.
        etcd_security: of connections to etcd.

    Raises:
        InvalidArgument: the text is neither, or what etcd needs is not installed.
    """
    if text.startswith((_ETCD, _ETCD_WITH_TLS)):
        addresses = text.removeprefix(_ETCD).removeprefix(_ETCD_WITH_TLS).rstrip("/").split(",")
        return EtcdController([check_address(part.strip()) for part in addresses], term_lease_s, etcd_security)
    if "://" in text or "," in text:
        raise InvalidArgument(f"{text!r} names no controller: write HOST:PORT, or etcd://HOST:PORT[,HOST:PORT]")
    return GrpcController(check_address(text), security)
