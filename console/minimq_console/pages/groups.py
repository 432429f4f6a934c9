"""The consumer groups, those with the most lag first."""

from __future__ import annotations

from datetime import datetime

import msgspec

from minimq.operations.activity import GroupActivity
from minimq_console.page import Page, PageData, Visit
from minimq_console.table_part import TablePart, part_of

_ORDERS = ("lag", "name", "behind", "rate")


class GroupRow(msgspec.Struct, frozen=True):
    """One group."""

    group: str
    members: int
    #: Number of messages that it has not committed.
    lag: int
    #: Seconds since the oldest of them was stored.
    lag_s: float
    #: Messages that it commits in a second; None until it was looked at twice.
    out_per_s: float | None
    retrying: int
    in_flight: int
    dead_letters: int
    topics: tuple[str, ...]
    #: Names of brokers that did not answer.
    unanswered: tuple[str, ...]
    away: tuple[str, ...]


class GroupsPage(PageData, frozen=True, kw_only=True):
    """A part of all groups."""

    search: str
    #: "lag", "name", "behind" or "rate".
    order: str
    #: When they were read; None if they never could be.
    read_at: datetime | None
    part: TablePart
    groups: tuple[GroupRow, ...]


def gather(visit: Visit) -> GroupsPage:
    """Return the groups of the last sample that are searched for."""
    parameters = visit.parameters
    search, order = parameters.text("search"), parameters.choice("order", _ORDERS, "lag")
    bounds = parameters.rows()
    sample = visit.sample()
    rows = [
        row_of(each)
        for each in (sample.activity.groups if sample.activity is not None else ())
        if search.lower() in each.group.group.lower()
    ]
    if order == "name":
        rows.sort(key=lambda row: row.group)
    elif order == "behind":
        rows.sort(key=lambda row: (-row.lag_s, row.group))
    elif order == "rate":
        rows.sort(key=lambda row: (-(row.out_per_s or 0.0), row.group))
    shown, part = part_of(rows, bounds)
    return GroupsPage(
        search=search, order=order, read_at=sample.at, part=part, groups=tuple(shown), missing=visit.missing
    )


def row_of(activity: GroupActivity) -> GroupRow:
    """Return the row of a group."""
    group = activity.group
    return GroupRow(
        group=group.group,
        members=len(group.members),
        lag=group.lag,
        lag_s=group.lag_s,
        out_per_s=activity.out_per_s,
        retrying=group.retrying,
        in_flight=group.in_flight,
        dead_letters=group.dead_letters,
        topics=tuple(sorted({queue.queue.topic for queue in group.queues})),
        unanswered=tuple(group.unanswered),
        away=tuple(each.broker_name for each in group.away),
    )


PAGE = Page(path="/groups", template="groups.html", gather=gather, title="Groups", label="Groups")
