"""Problems of a cluster for an operator: the kind of each, one fact about it, and one table of sentences."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minimq.admin.texts import duration_of
from minimq_common.model import MASTER_ID
from minimq_common.text_units import count_of

if TYPE_CHECKING:
    from minimq.admin.descriptions import BrokerReport, BrokerStatus
    from minimq.admin.group_descriptions import GroupDescription

#: A controller that is silent for more seconds is reported.
_SILENT_S = 3.0

_SENTENCES: Mapping[str, str] = {
    "offline": "{}",
    "silent": "does not answer: {}",
    "no_master": "no master: it accepts no messages, but its slaves can be read. An in-sync replica is elected "
    "automatically; `minimq cluster promote {} --replica ID --unclean` elects another",
    "store_failed": "stores nothing after a disk error: restart it",
    "slow_disk": "its disk is slow: a sync has taken {} in the last minute",
    "clock_ahead": "deletes nothing by age, since its clock has jumped ahead by {}: correct it today if it is wrong",
    "stamps_ahead": "new messages are stamped up to {} ahead, since a clock was wrong: use new queues",
    "undecided": "waits for its controller",
    "no_lease": "accepts no messages: its controller does not answer, and not all in-sync replicas confirm it",
    "without_controller": "has served without its controller for {}: all in-sync replicas confirm it, but no other "
    "master can be elected",
    "silent_controller": "its controller has not answered for {}",
    "follows_none": "follows no master",
    "too_few_in_sync": "accepts no messages: {} needed",
    "replica_lost": "replica {} does not follow",
    "full_disk": "the disk is {} full",
    "disk_of_others": "other files fill its disk, so it no longer deletes messages early",
    "deleted_early": "its disk was nearly full, and it deleted {} of messages before their time",
    "no_members": "no members, and a lag of {}",
}


def _silent_controller(report: BrokerReport) -> str:
    about = report.replication
    is_said = about.by_replicas_s or (about.role == "master" and about.lease_s == 0)
    is_silent = about.role != "undecided" and about.controller_silent_s > _SILENT_S
    return duration_of(about.controller_silent_s) if is_silent and not is_said else ""


def _too_few_in_sync(report: BrokerReport) -> str:
    about = report.replication
    is_short = about.role == "master" and about.sync and len(about.in_sync) < about.min_in_sync
    return f"{len(about.in_sync)} in sync, {about.min_in_sync}" if is_short else ""


#: The fact about each kind of problem in a report; it is false without that problem.
_FACTS: Mapping[str, Callable[[BrokerReport], object]] = {
    "store_failed": lambda it: it.store_failed,
    "slow_disk": lambda it: it.slow_sync_s and f"{it.slow_sync_s:.1f} s",
    "clock_ahead": lambda it: it.clock_ahead_s and duration_of(it.clock_ahead_s),
    "stamps_ahead": lambda it: it.stamps_ahead_s and duration_of(it.stamps_ahead_s),
    "undecided": lambda it: it.replication.role == "undecided",
    "follows_none": lambda it: it.replication.role == "slave" and not it.replication.connected,
    "no_lease": lambda it: it.replication.role == "master" and it.replication.lease_s == 0,
    "without_controller": lambda it: it.replication.by_replicas_s and duration_of(it.replication.by_replicas_s),
    "silent_controller": _silent_controller,
    "too_few_in_sync": _too_few_in_sync,
    "replica_lost": lambda it: ", ".join(
        str(each.replica_id) for each in it.replication.replicas if not each.connected
    ),
    "full_disk": lambda it: it.disk_level != "normal" and f"{it.disk_used:.0%} ({it.disk_level})",
    "disk_of_others": lambda it: it.disk_filled_by_others,
    "deleted_early": lambda it: it.bytes_deleted_early and mebibytes(it.bytes_deleted_early),
}


def mebibytes(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


@dataclass(frozen=True, slots=True)
class Problem:
    kind: str
    #: Such as "broker broker-a" or "group billing".
    where: str
    #: Such as a time or a number with its unit; it completes the sentence.
    fact: object = None
    #: The group that it is about, if any.
    group: str | None = None

    @property
    def sentence(self) -> str:
        return _SENTENCES[self.kind].format(self.fact)

    @property
    def text(self) -> str:
        return f"{self.where}: {self.sentence}"


def problems_of(brokers: Collection[BrokerStatus], groups: Collection[GroupDescription]) -> list[Problem]:
    """Return the problems, brokers first. A broker that does not answer is reported once."""
    found = [*without_master(brokers), *(problem for status in brokers for problem in of_broker(status))]
    unanswered: dict[str, str] = {}
    for group in groups:
        unanswered = {**group.unanswered, **unanswered}
    reported = _reported_brokers(brokers)
    found += [
        Problem("silent", f"broker {name}", why) for name, why in sorted(unanswered.items()) if name not in reported
    ]
    return found + [
        Problem("no_members", f"group {each.group}", count_of(each.lag, each.lag_unit), each.group)
        for each in groups
        if each.lag and not each.members and not each.is_published  # a Spark query publishes without being a member
    ]


def of_broker(status: BrokerStatus) -> list[Problem]:
    where = f"broker {status.broker_name}" + (f", replica {status.broker_id}" if status.broker_id else "")
    if status.error is not None:
        return [Problem("offline" if status.offline_since else "silent", where, status.error)]
    if status.report is None:
        return []
    return [Problem(kind, where, found) for kind, fact in _FACTS.items() if (found := fact(status.report))]


def without_master(statuses: Collection[BrokerStatus]) -> list[Problem]:
    present = [each for each in statuses if each.offline_since is None]
    with_master = {each.broker_name for each in present if each.broker_id == MASTER_ID}
    names = sorted({each.broker_name for each in present} - with_master)
    return [Problem("no_master", f"broker {name}", name) for name in names]


def _reported_brokers(brokers: Collection[BrokerStatus]) -> set[str]:
    answering = {status.broker_name for status in brokers if status.error is None}
    return {
        status.broker_name
        for status in brokers
        if status.error is not None and (status.broker_id == MASTER_ID or status.broker_name not in answering)
    }
