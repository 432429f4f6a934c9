"""Consumer groups, those with the most lag first; a group: its members, who reads which queue, and the lag by queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from minimq.administration.group_descriptions import GroupDescription
from minimq.operations.activity import GroupActivity
from minimq.operations.views import row_of
from minimq_console.actions import ACTIONS
from minimq_console.page import Data, Page, Visit

#: What rows may be sorted by; the sampler sorts them by lag.
_ORDERS: dict[str, Callable[[Data], Any] | None] = {
    "lag": None,
    "name": lambda row: row["group"],
    "behind": lambda row: (-row["lag_s"], row["group"]),
    "rate": lambda row: (-(row["out_per_s"] or 0.0), row["group"]),
}


def gather_groups(visit: Visit) -> Data:
    """Return the groups of the last sample that are searched for."""
    search, order = visit.parameters.text("search"), visit.parameters.choice("order", _ORDERS, "lag")
    sample, sort = visit.sample(), _ORDERS[order]
    groups = sample.activity.groups if sample.activity is not None else ()
    rows = [_row(each) for each in groups if search.lower() in each.group.group.lower()]
    shown, part = visit.parameters.part_of(rows if sort is None else sorted(rows, key=sort))
    return {"search": search, "order": order, "read_at": sample.at, "part": part, "groups": shown}


def _row(activity: GroupActivity) -> Data:
    group = activity.group
    return row_of(
        group,
        *("lag", "lag_s", "retrying", "in_flight"),
        keep=("group", "dead_letters", "unanswered"),
        members=len(group.members),
        out_per_s=activity.out_per_s,
        topics=sorted({queue.queue.topic for queue in group.queues}),
        away=[each.broker_name for each in group.away],
    )


def gather_group(visit: Visit) -> Data:
    """Return what the brokers say of the group now."""
    name, sampler = visit.parameters.name("group"), visit.observer.sampler
    group = visit.ask("the group", lambda: visit.admin.describe_group(name)).required()
    queues, part = visit.parameters.part_of(sorted(group.queues, key=lambda queue: (-queue.lag, queue.queue)))
    actions = visit.offers(ACTIONS["reset-offsets"].on(group=name), ACTIONS["delete-group"].on(group=name))
    visit.missing += [f"broker {broker}: {why}" for broker, why in group.unanswered.items()]
    return row_of(
        group,
        *("lag", "lag_s", "retrying", "is_agreed", "topics_differ"),
        keep=("group", "strategy", "dead_letters", "expires_at"),
        away=[each.broker_name for each in group.away],
        members=_members(group),
        part=part,
        queues=[row_of(each, "lag", held_since=sampler.held_since(name, each)) for each in queues],
        charts=[
            sampler.chart(("group", name, "lag"), "Lag", "messages"),
            sampler.chart(("group", name, "out"), "Committed", "messages/s"),
        ],
        actions=actions,
    )


def _members(group: GroupDescription) -> list[Data]:
    in_flight = Counter[str]()
    for queue in group.queues:
        in_flight.update(queue.popped.holders if queue.popped is not None else {})
    return [
        row_of(
            each,
            *("lag", "lag_s"),
            keep=("client_id", "topics", "seen_by"),
            queues=len(each.queues),
            in_flight=in_flight[each.client_id],
        )
        for each in group.members
    ]


PAGES = (
    Page("/groups", "groups.html", gather_groups, "Groups", label="Groups"),
    Page("/groups/{group}", "group.html", gather_group, "Group"),
)
