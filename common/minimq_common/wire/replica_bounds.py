"""The bounds of all numbers and texts of reports and records of replicas. Pure.

Controllers and brokers check what they get from each other, and what they read from disk, before they believe it: a
record that cannot be right would stay, since replicas teach it to a controller that has lost it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from minimq_common.errors import InvalidArgument
from minimq_common.names import check_address, check_broker, check_cluster

if TYPE_CHECKING:
    from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet

#: Leases are numbered by `term << 32`, in 64 bits with a sign.
MAX_TERM = (1 << 31) - 1
#: By how much more than the recorded term a report may claim. Terms grow by one in an election, so whoever claims more
#: was not told so by any controller; and what a false report costs is a part of the terms, never all of them.
MAX_TERM_GAP = 1 << 20
#: Most replicas of one broker name.
MAX_REPLICAS = 128
MAX_REPLICA_ID = (1 << 31) - 1
#: Longest lease, in seconds.
MAX_LEASE_S = 86_400.0
_MAX_NUMBER = (1 << 63) - 1
_MAX_VERSION = (1 << 53) - 1
_LOG_ID = re.compile(r"[\w-]{0,64}\Z", re.ASCII)


def check_report(report: ReplicaReport) -> None:
    """Raise `InvalidArgument` when a value of a report, or of the record in it, is out of its bounds."""
    what = f"the report of {report.broker_name[:40]!r} ({report.replica_id})"
    check_cluster(report.cluster)
    check_broker(report.broker_name)
    check_address(report.address)
    _check_log_id(what, report.log_id)
    _check_range(what, "replica_id", report.replica_id, 0, MAX_REPLICA_ID)
    _check_range(what, "run", report.run, 1, _MAX_NUMBER)
    _check_range(what, "min_in_sync", report.min_in_sync, 1, MAX_REPLICAS)
    _check_range(what, "last_term", report.last_term, 0, MAX_TERM)
    _check_range(what, "log_end", report.log_end, 0, _MAX_NUMBER)
    _check_range(what, "common_end", report.common_end or 0, 0, _MAX_NUMBER)
    if report.known is not None:
        check_record(report.known)
        if report.known.key != report.key:
            raise InvalidArgument(f"{what} names the record of another broker: {report.known}")


def check_record(record: ReplicaSet) -> None:
    """Raise `InvalidArgument` when a value of a record is out of its bounds, or contradicts another one."""
    what = f"the record of {record.broker_name[:40]!r}"
    check_cluster(record.cluster)
    check_broker(record.broker_name)
    _check_log_id(what, record.log_id)
    _check_range(what, "term", record.term, 1, MAX_TERM)
    _check_range(what, "log_term", record.log_term, 0, MAX_TERM)
    _check_range(what, "master_id", record.master_id, 0, MAX_REPLICA_ID)
    _check_range(what, "master_run", record.master_run, 0, _MAX_NUMBER)
    _check_range(what, "version", record.version, 1, _MAX_VERSION)
    _check_range(what, "min_in_sync", record.min_in_sync, 1, MAX_REPLICAS)
    _check_range(what, "common_end", record.common_end, 0, _MAX_NUMBER)
    if not 0 <= record.wait_s <= 2 * MAX_LEASE_S:
        raise InvalidArgument(f"{what} has a wait of {record.wait_s} s: it is at most {2 * MAX_LEASE_S:g} s")
    if not 0 < record.lease_s <= MAX_LEASE_S:
        raise InvalidArgument(f"{what} has a lease of {record.lease_s} s: it is above 0, and at most {MAX_LEASE_S:g} s")
    if len(record.addresses) > MAX_REPLICAS:
        raise InvalidArgument(f"{what} has {len(record.addresses)} replicas, the limit is {MAX_REPLICAS}")
    for replica_id, address in record.addresses.items():
        _check_range(what, "replica_id", replica_id, 0, MAX_REPLICA_ID)
        check_address(address)
    check_in_sync(what, record.in_sync)
    named = {record.master_id} if record.successor is None else {record.master_id, record.successor}
    if not named <= record.addresses.keys():
        raise InvalidArgument(f"{what} is not one: it names replica {max(named)} without an address")


def check_in_sync(what: str, in_sync: frozenset[int]) -> None:
    """Raise `InvalidArgument` when an in-sync set has too many members, or one that cannot be a replica."""
    if len(in_sync) > MAX_REPLICAS:
        raise InvalidArgument(f"{what} has {len(in_sync)} replicas in sync, the limit is {MAX_REPLICAS}")
    for replica_id in in_sync:
        _check_range(what, "replica_id", replica_id, 0, MAX_REPLICA_ID)


def check_terms(record: ReplicaSet | None, report: ReplicaReport) -> None:
    """Raise `InvalidArgument` when a report claims a term that no controller can have given."""
    given = record.term if record is not None else 0
    claimed = max(report.last_term, report.known.term if report.known is not None else 0)
    if claimed > given + MAX_TERM_GAP:
        raise InvalidArgument(
            f"replica {report.replica_id} of {report.broker_name} claims term {claimed}, but its controller has given "
            f"{given}: more than {MAX_TERM_GAP} terms are never given in between; its data directory is damaged, or "
            "it is no replica"
        )


def check_place(record: ReplicaSet, report: ReplicaReport) -> None:
    """Raise `InvalidArgument` when a replica has no place in a record, which has as many as it may have."""
    if report.replica_id not in record.addresses and len(record.addresses) >= MAX_REPLICAS:
        raise InvalidArgument(
            f"replica {report.replica_id} of {record} has no place: {MAX_REPLICAS} replicas are recorded, which is the "
            "limit"
        )


def _check_range(what: str, name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"{what} has {name} {value}: it is a number from {least} to {most}")


def _check_log_id(what: str, log_id: str) -> None:
    if not _LOG_ID.match(log_id):
        raise InvalidArgument(f"{what} has an invalid log id: {log_id[:40]!r}")
