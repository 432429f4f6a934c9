"""Pages about the cluster: brokers, replicas and problems; conflicts; routes of topics; users."""

from __future__ import annotations

from msgspec.structs import replace

from minimq.admin.activity import ActivityProblem, BrokerActivity, say_without_master
from minimq.admin.brokers import status_rows
from minimq_common.errors import InvalidArgument
from minimq_common.model import MASTER_ID
from minimq_common.security.access_document import AccessDocument
from minimq_console.actions import ACTIONS, toggles
from minimq_console.page import ActionLink, Data, Page, PageContext


def gather_cluster(visit: PageContext) -> Data:
    """Return the brokers and problems of the last sample."""
    sample, sampler = visit.sample(), visit.observer.sampler
    found, brokers = sample.activity, sample.activity.brokers if sample.activity is not None else ()
    actions, statuses = visit.offers_of_rows([_actions(each) for each in brokers]), [each.status for each in brokers]
    return {
        "now": visit.now,
        "read_at": sample.at,
        "problems": [*map(ActivityProblem, say_without_master(statuses)), *(found.problems if found else ())],
        "replicas": [
            {**row, "in_per_s": each.in_per_s, "out_per_s": each.out_per_s, "actions": own}
            for row, each, own in zip(status_rows(statuses), brokers, actions, strict=True)
        ],
        "topic_count": found.topic_count if found else 0,
        "group_count": len(found.groups) if found else 0,
        "charts": [
            sampler.chart(("cluster", "in"), "Messages stored", "messages/s"),
            sampler.chart(("cluster", "out"), "Messages delivered", "messages/s"),
        ],
    }


def _actions(activity: BrokerActivity) -> list[ActionLink]:
    status, report = activity.status, activity.status.report
    if report is None:
        return []
    if status.broker_id == MASTER_ID:
        return toggles(ACTIONS["pause-broker"], report.permission, broker_name=status.broker_name)
    return [ACTIONS["promote"].on({"replica": str(report.replication.replica_id)}, broker_name=status.broker_name)]


# ---- Conflicts and routes ---------------------------------------------------------------------------


def gather_conflicts(visit: PageContext) -> Data:
    """Return the brokers that name servers rejected or replaced lately."""
    return {"conflicts": visit.shown("cluster conflicts", visit.ask("the conflicts", visit.admin.conflicts).required())}


def gather_routes(visit: PageContext) -> Data:
    """Return the topics that match the search, and the current route of the chosen one."""
    search, topic = visit.parameters.text("search"), visit.parameters.text("topic", most=127)
    asked = visit.ask("the route", lambda: visit.admin.route(topic)) if topic else None
    names = visit.ask("the topics", visit.admin.list_topics).required()
    shown, part = visit.parameters.part_of([name for name in names if search.lower() in name.lower()])
    rows = visit.shown("route", asked.required()) if asked is not None else []
    return {"search": search, "topic": topic, "part": part, "topics": shown, "route": rows}


# ---- Users ------------------------------------------------------------------------------------------


def gather_users(visit: PageContext) -> Data:
    """Return the document of users and rules, and which version is in force at each server."""
    search = visit.parameters.text("search")
    asked = visit.ask("users and rules", visit.admin.access)
    status = visit.ask("the servers", visit.admin.access_status)
    try:
        document = asked.required()
    except InvalidArgument:  # the cluster has no access control
        document = AccessDocument()
    shown, part = visit.parameters.part_of([name for name in sorted(document.users) if search.lower() in name.lower()])
    users = replace(document, users={name: document.users[name] for name in shown})
    return {
        "version": document.version or None,
        "search": search,
        "part": part,
        "users": visit.shown("user list", users),
        "roles": [{"role": name, "rules": rules} for name, rules in sorted(document.roles.items())],
        "servers": visit.shown("access status", status.or_else([])),
    }


PAGES = (
    Page("/", "cluster.html", gather_cluster, "Cluster", label="Cluster"),
    Page("/users", "users.html", gather_users, "Users and rules", label="Users", live_s=5.0),
    Page("/routes", "routes.html", gather_routes, "Routes", label="Routes"),
    Page("/conflicts", "conflicts.html", gather_conflicts, "Conflicts", label="Conflicts"),
)
