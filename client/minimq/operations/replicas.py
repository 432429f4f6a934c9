"""The replication of brokers, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minimq.operations.rows import name_in_rows, row_of
from minimq.operations.views import Row
from minimq.operations.words import duration_of, size_of
from minimq_common.model import MASTER_ID

if TYPE_CHECKING:
    from minimq.administration.descriptions import BrokerReport, BrokerStatus, ReplicationReport, SlaveStatus

_KEYS = (
    *("role", "replica_id", "term", "sync", "min_in_sync", "in_sync", "confirmed"),
    *("lease_s", "controller_silent_s", "by_replicas_s", "behind_bytes"),
)

#: A controller that is silent for longer is reported, in seconds.
_SILENT_S = 3.0


def replication_of(status: BrokerStatus, masters: Sequence[BrokerStatus]) -> Row:
    """Return the replication status of a broker, by the keys of the JSON output; masters report the lag of slaves."""
    problem = "; ".join(broker_problems(status.report)) or None if status.report is not None else None
    if status.report is None or status.report.replication.role == "alone":
        return {**dict.fromkeys(map(name_in_rows, (*_KEYS, "behind_s", "replicas"))), "problem": problem}
    about = status.report.replication
    seen = _as_its_master_sees_it(status.broker_name, about, masters)
    replicas = [row_of(each, in_sync=each.replica_id in about.in_sync) for each in about.replicas]
    row = row_of(about, keep=_KEYS, behind_s=seen.behind_s if seen else None, replicas=replicas, problem=problem)
    return {**row, "behind_bytes": seen.behind_bytes} if seen else row


def masters_of(statuses: Sequence[BrokerStatus]) -> list[BrokerStatus]:
    """Return the brokers that report to be masters."""
    return [item for item in statuses if item.report is not None and item.report.replication.role == "master"]


def say_without_master(statuses: Sequence[BrokerStatus]) -> list[str]:
    """Return a sentence for each broker with registered slaves only."""
    statuses = [item for item in statuses if item.away_since is None]
    with_master = {item.broker_name for item in statuses if item.broker_id == MASTER_ID}
    return [
        f"broker {name} has no master: it accepts no messages, but its slaves can be read. An in-sync replica is "
        f"elected automatically; `minimq cluster promote {name} --to ID --unclean` elects another"
        for name in sorted({item.broker_name for item in statuses} - with_master)
    ]


def in_short(row: Row) -> Row:
    """Return lists and sizes in readable form."""
    in_sync, behind_bytes, behind_s = row["in_sync"], row["behind_bytes"], row["behind_s"]
    behind = size_of(behind_bytes) if isinstance(behind_bytes, int) else None
    if behind is not None and isinstance(behind_s, float) and behind_bytes:
        behind += f", {duration_of(behind_s)}"
    return {
        "mode": ("sync" if row["sync"] else "async") if row["role"] == "master" else None,
        "in_sync": ", ".join(map(str, in_sync)) if isinstance(in_sync, list) else None,
        "behind": behind,
        "state": row["problem"] or row["state"],
    }


def _as_its_master_sees_it(
    broker_name: str, about: ReplicationReport, masters: Sequence[BrokerStatus]
) -> SlaveStatus | None:
    if about.role != "slave":
        return None
    others = (
        each
        for master in masters
        if master.broker_name == broker_name and master.report is not None
        for each in master.report.replication.replicas
    )
    return next((each for each in others if each.replica_id == about.replica_id), None)


def broker_problems(report: BrokerReport) -> list[str]:
    """Return what is wrong with a broker, in sentences without a subject."""
    about = report.replication
    problems = ["stores nothing after a disk error: restart it"] if report.store_failed else []
    if report.clock_ahead_s:
        ahead = duration_of(report.clock_ahead_s)
        problems.append(f"deletes nothing by age, since its clock has jumped ahead by {ahead}: see --max-clock-jump")
    if report.stamps_ahead_s:
        ahead = duration_of(report.stamps_ahead_s)
        problems.append(f"new messages are stamped up to {ahead} ahead, since a clock was wrong: go on with new queues")
    if about.role == "undecided":
        problems.append("waits for its controller")
    if about.role == "slave" and not about.connected:
        problems.append("follows no master")
    if about.role == "master" and about.lease_s == 0:
        problems.append("accepts no messages: its controller does not answer, and not all in sync confirm it")
    elif about.by_replicas_s:
        since = duration_of(about.by_replicas_s)
        problems.append(f"has no controller: serves for {since} since all in sync confirm it, none can be elected")
    elif about.role != "undecided" and about.controller_silent_s > _SILENT_S:
        problems.append(f"its controller has not answered for {duration_of(about.controller_silent_s)}")
    if about.role == "master" and about.sync and len(about.in_sync) < about.min_in_sync:
        problems.append(f"accepts no messages: {len(about.in_sync)} in sync, {about.min_in_sync} needed")
    gone = [str(replica.replica_id) for replica in about.replicas if not replica.connected]
    if gone:
        problems.append(f"replica {', '.join(gone)} does not follow")
    return problems
