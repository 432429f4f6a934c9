"""Pages about the cluster: brokers, replicas and problems; users."""

from __future__ import annotations

from minimq.admin.activity import BrokerActivity
from minimq.admin.brokers import status_rows
from minimq.local.access_file import user_rows
from minimq_common.errors import AccessDenied
from minimq_common.model import MASTER_ID
from minimq_common.security.access_policy import Policy
from minimq_common.security.access_rule import need_of
from minimq_console.actions import ACTIONS, toggles
from minimq_console.page import ActionLink, Data, Page, PageContext


def gather_cluster(visit: PageContext) -> Data:
    """Return the brokers and problems of the last sample."""
    sample, sampler = visit.sample(), visit.observer.sampler
    found = sample.activity
    statuses = [each.status for each in found.brokers]
    return {
        "now": visit.now,
        "read_at": sample.at,
        "problems": found.problems,
        "replicas": [
            {**row, "in_per_s": each.in_per_s, "out_per_s": each.out_per_s, "actions": visit.offers(*_actions(each))}
            for row, each in zip(status_rows(statuses), found.brokers, strict=True)
        ],
        "topic_count": found.topic_count,
        "group_count": len(found.groups),
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


def gather_users(visit: PageContext) -> Data:
    """Return the users and rules in the folder of the console. Raises `AccessDenied` without the right to them."""
    assert visit.console.users is not None
    search, document, need = visit.parameters.text("search"), visit.console.users.read(), need_of("manage", "cluster")
    if not Policy(document).decide(visit.visitor.user, need).allowed:
        raise AccessDenied(f"{visit.visitor.user or 'a caller without a key'} may not see the users: it takes '{need}'")
    users = [each for each in user_rows(document) if search.lower() in each["user"].lower()]
    shown, part = visit.parameters.part_of(users)
    roles = [{"role": name, "rules": rules} for name, rules in sorted(document.roles.items())]
    return {"search": search, "part": part, "users": shown, "roles": roles}


#: Only of a console that has a folder with users and rules.
USERS = Page("/users", "users.html", gather_users, "Users and rules", label="Users", live_s=5.0)
PAGES = (Page("/", "cluster.html", gather_cluster, "Cluster", label="Cluster"),)
