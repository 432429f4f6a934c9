"""The cluster: its brokers and their replicas, problems first; its conflicts, the routes of topics, and its users."""

from __future__ import annotations

from datetime import datetime

import msgspec

from minimq.operations.activity import ActivityProblem, BrokerActivity, say_without_master
from minimq.operations.views import row_of
from minimq_common.errors import InvalidArgument
from minimq_common.model import MASTER_ID
from minimq_common.security.access_document import User
from minimq_console.actions import ACTIONS, toggles
from minimq_console.page import Data, Offer, Page, Visit


def gather_cluster(visit: Visit) -> Data:
    """Return what the last sample has."""
    sample, sampler = visit.sample(), visit.observer.sampler
    brokers = sample.activity.brokers if sample.activity is not None else ()
    actions = visit.offers_of_rows([_actions(each) for each in brokers])
    found, statuses = sample.activity, [each.status for each in brokers]
    return {
        "read_at": sample.at,
        "problems": [*map(ActivityProblem, say_without_master(statuses)), *(found.problems if found else ())],
        "replicas": [{**_replica(each, visit.now), "actions": own} for each, own in zip(brokers, actions, strict=True)],
        "topic_count": found.topic_count if found else 0,
        "group_count": len(found.groups) if found else 0,
        "charts": [
            sampler.chart(("cluster", "in"), "Messages stored", "messages/s"),
            sampler.chart(("cluster", "out"), "Messages delivered", "messages/s"),
        ],
    }


def _actions(activity: BrokerActivity) -> list[Offer]:
    status, report = activity.status, activity.status.report
    if report is None:
        return []
    if status.broker_id == MASTER_ID:
        return toggles(ACTIONS["pause-broker"], report.permission, broker_name=status.broker_name)
    return [ACTIONS["promote"].on({"to": str(report.replication.replica_id)}, broker_name=status.broker_name)]


def _replica(activity: BrokerActivity, now: datetime) -> Data:
    status, report = activity.status, activity.status.report
    return row_of(
        status,
        state="away" if status.away_since else "silent" if report is None else "running",
        up_s=None if report is None else max((now - report.started_at).total_seconds(), 0.0),
        in_per_s=activity.in_per_s,
        out_per_s=activity.out_per_s,
    )


# ---- Conflicts and routes ---------------------------------------------------------------------------


def gather_conflicts(visit: Visit) -> Data:
    """Return the brokers that name servers refused or replaced lately."""
    found = visit.ask("the conflicts", visit.admin.conflicts).required()
    return {"conflicts": [row_of(each) for each in found]}


def gather_routes(visit: Visit) -> Data:
    """Return the topics that are searched for, and the route of the chosen one, asked anew."""
    search, topic = visit.parameters.text("search"), visit.parameters.text("topic", most=127)
    asked = visit.ask("the route", lambda: visit.admin.route(topic)) if topic else None
    names = visit.ask("the topics", visit.admin.list_topics).required()
    shown, part = visit.parameters.part_of([name for name in names if search.lower() in name.lower()])
    rows: list[Data] = []
    if asked is not None:
        route = asked.required()
        for data in route.queues:
            broker = route.brokers[data.broker_name]
            slaves = {number: address for number, address in broker.addresses.items() if number}
            rows.append(row_of(data, cluster=broker.cluster, master=broker.master, slaves=slaves, away_since=None))
        unknown = dict.fromkeys(("master", "read_queues", "write_queues", "permission"))
        rows += [
            {"broker": each.broker_name, "cluster": each.cluster, **unknown, "slaves": {}, "away_since": each.since}
            for each in route.away
        ]
    return {"search": search, "topic": topic, "part": part, "topics": shown, "route": rows}


# ---- Users ------------------------------------------------------------------------------------------


def gather_users(visit: Visit) -> Data:
    """Return the document that is in force, and where."""
    search = visit.parameters.text("search")
    asked, status = (
        visit.ask("users and rules", visit.admin.access),
        visit.ask("the servers", visit.admin.access_status),
    )
    try:
        document = asked.required()
    except InvalidArgument:  # the cluster lets everybody in
        document = None
    now_ms, version = int(visit.now.timestamp() * 1000), document.version if document is not None else None
    users = sorted(document.users.items()) if document is not None else []
    roles = sorted(document.roles.items()) if document is not None else []
    shown, part = visit.parameters.part_of([each for each in users if search.lower() in each[0].lower()])
    return {
        "version": version,
        "search": search,
        "part": part,
        "users": [_user(name, user, now_ms) for name, user in shown],
        "roles": [{"role": name, "rules": rules} for name, rules in roles],
        "servers": [
            row_of(
                each,
                keep=("server", "address", "version", "only_reports", "error"),
                is_current=each.version == (version or 0),
            )
            for each in status.or_else([])
        ],
    }


def _user(name: str, user: User, now_ms: int) -> Data:
    limits = user.limits
    return {
        "user": name,
        "disabled": user.disabled,
        "roles": user.roles,
        "rules": user.rules,
        "keys": [{"key_id": key_id, "lifetime": key.lifetime(now_ms)} for key_id, key in user.keys.items()],
        "in_bytes_per_s": 0 if limits is msgspec.UNSET else limits.in_bytes_per_s,
        "out_bytes_per_s": 0 if limits is msgspec.UNSET else limits.out_bytes_per_s,
    }


PAGES = (
    Page("/", "cluster.html", gather_cluster, "Cluster", label="Cluster"),
    Page("/users", "users.html", gather_users, "Users and rules", label="Users", live_s=5.0),
    Page("/routes", "routes.html", gather_routes, "Routes", label="Routes"),
    Page("/conflicts", "conflicts.html", gather_conflicts, "Conflicts", label="Conflicts"),
)
