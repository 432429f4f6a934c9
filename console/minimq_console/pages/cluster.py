"""The cluster: its brokers and their replicas, problems first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from minimq.administration.descriptions import BrokerStatus, ReplicationReport
from minimq.operations.activity import ActivityProblem, BrokerActivity
from minimq_common.model import MASTER_ID, permission_name
from minimq_console.action import Offer
from minimq_console.chart import Chart
from minimq_console.operation_actions import FORMS, toggles
from minimq_console.page import Page, PageData, Visit


class ReplicaRow(msgspec.Struct, frozen=True):
    """One replica of a broker."""

    cluster: str
    broker: str
    id: int
    address: str
    #: "running", "away", or "silent" if it does not answer.
    state: str
    #: Why it is away or silent; None for others.
    error: str | None
    #: When it went; None for others.
    away_since: datetime | None
    #: Of minimq, as the following None if it does not answer.
    version: str | None = None
    #: Seconds since it began to serve.
    up_s: float | None = None
    #: Messages that it stores in a second.
    in_per_s: float | None = None
    #: Messages that it sends to consumers in a second.
    out_per_s: float | None = None
    #: What clients may do with its topics.
    permission: str | None = None
    disk_used: float | None = None
    disk_free_bytes: int | None = None
    #: What that calls for: "normal", "warn", "delete-early" or "refuse".
    disk_level: str | None = None
    log_bytes: int | None = None
    store_failed: bool = False
    replication: ReplicationReport | None = None
    #: Those that the visitor may use on it.
    actions: tuple[Offer, ...] = ()


class ClusterPage(PageData, frozen=True, kw_only=True):
    """The cluster at one moment."""

    #: When it was read; None if it never could be.
    read_at: datetime | None
    problems: tuple[ActivityProblem, ...]
    replicas: tuple[ReplicaRow, ...]
    topic_count: int
    group_count: int
    charts: tuple[Chart, ...]


def gather(visit: Visit) -> ClusterPage:
    """Return what the last sample has."""
    sample = visit.sample()
    sampler = visit.observer.sampler
    charts = (
        sampler.chart(("cluster", "in"), "Messages stored", "messages/s"),
        sampler.chart(("cluster", "out"), "Messages delivered", "messages/s"),
    )
    if sample.activity is None:
        return ClusterPage(
            read_at=None,
            problems=(),
            replicas=(),
            topic_count=0,
            group_count=0,
            charts=charts,
            missing=visit.missing,
        )
    activity = sample.activity
    statuses = [each.status for each in activity.brokers]
    return ClusterPage(
        read_at=sample.at,
        problems=(*_without_master(statuses), *activity.problems),
        replicas=_rows(visit, activity.brokers),
        topic_count=activity.topic_count,
        group_count=len(activity.groups),
        charts=charts,
        missing=visit.missing,
    )


def _rows(visit: Visit, brokers: Sequence[BrokerActivity]) -> tuple[ReplicaRow, ...]:
    may_change = bool(visit.offers(FORMS["pause-broker"].on(broker_name="any")))
    return tuple(_row(each, visit.now, _actions(each) if may_change else ()) for each in brokers)


def _actions(activity: BrokerActivity) -> tuple[Offer, ...]:
    status, report = activity.status, activity.status.report
    if report is None:
        return ()
    if status.broker_id == MASTER_ID:
        targets = toggles(FORMS["pause-broker"], report.permission, broker_name=status.broker_name)
        return tuple(target.offer for target in targets)
    replica = str(report.replication.replica_id)
    return (FORMS["promote"].on({"to": replica}, broker_name=status.broker_name).offer,)


def _row(activity: BrokerActivity, now: datetime, actions: tuple[Offer, ...]) -> ReplicaRow:
    status, report = activity.status, activity.status.report
    if report is None:
        return ReplicaRow(
            cluster=status.cluster,
            broker=status.broker_name,
            id=status.broker_id,
            address=status.address,
            state="away" if status.away_since else "silent",
            error=status.error,
            away_since=status.away_since,
        )
    return ReplicaRow(
        cluster=status.cluster,
        broker=status.broker_name,
        id=status.broker_id,
        address=status.address,
        state="running",
        error=None,
        away_since=None,
        version=report.version,
        up_s=max((now - report.started_at).total_seconds(), 0.0),
        in_per_s=activity.in_per_s,
        out_per_s=activity.out_per_s,
        permission=permission_name(report.permission),
        disk_used=report.disk_used,
        disk_free_bytes=report.disk_free_bytes,
        disk_level=report.disk_level,
        log_bytes=report.disk_bytes,
        store_failed=report.store_failed,
        replication=report.replication,
        actions=actions,
    )


def _without_master(statuses: Sequence[BrokerStatus]) -> list[ActivityProblem]:
    present = [status for status in statuses if status.away_since is None]
    with_master = {status.broker_name for status in present if status.broker_id == MASTER_ID}
    return [
        ActivityProblem(f"broker {name} has no master: it accepts no messages until an in-sync replica is elected")
        for name in sorted({status.broker_name for status in present} - with_master)
    ]


PAGE = Page(path="/", template="cluster.html", gather=gather, title="Cluster", label="Cluster")
