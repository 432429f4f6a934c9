"""Pages about consumer groups: all of them, and one with its members, queues and lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from minimq.admin.activity import GroupActivity
from minimq_console.actions import ACTIONS
from minimq_console.page import Data, Page, PageContext

#: The sort keys of rows; None keeps the order of the sampler, by lag.
_ORDERS: dict[str, Callable[[GroupActivity], Any] | None] = {
    "lag": None,
    "name": lambda each: each.group.group,
    "behind": lambda each: (-each.group.lag_s, each.group.group),
    "rate": lambda each: (-(each.out_per_s or 0.0), each.group.group),
}


def gather_groups(visit: PageContext) -> Data:
    """Return the groups of the last sample that match the search."""
    search, order = visit.parameters.text("search"), visit.parameters.choice("order", _ORDERS, "lag")
    sample, sort = visit.sample(), _ORDERS[order]
    found = [each for each in sample.activity.groups if search.lower() in each.group.group.lower()]
    shown, part = visit.parameters.part_of(found if sort is None else sorted(found, key=sort))
    rows = [
        {**row, "in_flight": each.group.in_flight, "out_per_s": each.out_per_s}
        for row, each in zip(visit.shown("group list", [each.group for each in shown]), shown, strict=True)
    ]
    return {"search": search, "order": order, "read_at": sample.at, "part": part, "groups": rows}


def gather_group(visit: PageContext) -> Data:
    name, sampler = visit.parameters.name("group"), visit.observer.sampler
    group = visit.ask("the group", lambda: visit.admin.describe_group(name)).required()
    row, in_flight = visit.shown("group describe", group), Counter[str]()
    for queue in group.queues:
        in_flight.update(queue.work_queue.holders if queue.work_queue is not None else {})
    shown, part = visit.parameters.part_of(sorted(row["queues"], key=lambda each: -each["lag"]))
    visit.missing += [f"broker {broker}: {why}" for broker, why in group.unanswered.items()]
    return {
        **row,
        "is_agreed": group.is_agreed,
        "topics_differ": group.topics_differ,
        "members": [{**each, "in_flight": in_flight[each["client_id"]]} for each in row["members"]],
        "part": part,
        "queues": shown,
        "charts": [
            sampler.chart(("group", name, "lag"), "Lag", f"{group.lag_unit}s"),
            sampler.chart(("group", name, "out"), "Committed", "messages/s"),
        ],
        "actions": visit.offers(ACTIONS["reset-offsets"].on(group=name), ACTIONS["delete-group"].on(group=name)),
    }


PAGES = (
    Page("/groups", "groups.html", gather_groups, "Groups", label="Groups"),
    Page("/groups/{group}", "group.html", gather_group, "Group"),
)
