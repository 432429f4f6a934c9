"""The screen of `minimq top`: what of an activity fits on a terminal. Draws, and reads nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from minimq.operations.printable import printable
from minimq.operations.words import duration_of, size_of

if TYPE_CHECKING:
    from minimq.administration.activity import BrokerActivity, ClusterActivity, GroupActivity, TopicActivity

#: Lines of the screen below title and problems that are no rows of tables: headings, keys, and one to spare.
_FRAME = 5
_MOST_PROBLEMS = 4
_HELP = "q quit   p pause   r by rate   n by name   ↑ ↓ scroll"


Item = TypeVar("Item")


class Order(Enum):
    """The order of topics and groups."""

    BUSIEST = "rate"
    NAME = "name"


@dataclass
class View:
    """The choices of the user.

    Attributes:
        order: of topics and groups.
        first: number of the first row of topics and groups.
        is_paused: nothing new is read.
        has_keys: there is a user who may press keys.
    """

    order: Order = Order.BUSIEST
    first: int = 0
    is_paused: bool = False
    has_keys: bool = True


def screen(cluster: str, activity: ClusterActivity | None, trouble: str, view: View, height: int) -> RenderableType:
    """Return what is shown.

    Args:
        cluster: addresses of the name servers.
        activity: what was read last; None before the first time.
        trouble: why it could not be read anew; empty if it could.
        view: what the user has chosen.
        height: lines of the terminal.
    """
    parts: list[RenderableType] = [_title(cluster, activity, view)]
    if trouble:
        parts.append(Text(printable(trouble), style="bold red"))
    if activity is None:
        return Group(*parts, Text("" if trouble else "reading..."))
    problems = activity.problems[:_MOST_PROBLEMS]
    parts += [Text(printable(each.text), style="red", no_wrap=True, overflow="ellipsis") for each in problems]
    if len(activity.problems) > len(problems):
        parts.append(Text(f"and {len(activity.problems) - len(problems)} other problems", style="red"))
    room = max(height - _FRAME - len(parts), 3)
    brokers = activity.brokers[: max(room // 3, 1)]
    left = room - len(brokers)
    # Half for each, and what one of them does not need for the other.
    group_rows = max(min(len(activity.groups), max(left // 2, left - len(activity.topics))), 1)
    topic_rows = max(left - group_rows, 1)
    topics: Sequence[TopicActivity] = activity.topics
    groups: Sequence[GroupActivity] = activity.groups
    if view.order is Order.NAME:
        topics = sorted(topics, key=lambda item: item.topic)
        groups = sorted(groups, key=lambda item: item.group.group)
    parts += [
        _table(("Broker", "Role", "In/s", "Out/s", "Disk", "Full"), brokers, _broker_row),
        _table(("Topic", "In/s", "Messages"), _from(topics, view.first, topic_rows), _topic_row),
        _table(("Group", "Members", "Out/s", "Lag", "Behind"), _from(groups, view.first, group_rows), _group_row),
    ]
    if view.has_keys:
        parts.append(Text(_HELP, style="dim"))
    return Group(*parts)


def rows_of(activity: ClusterActivity) -> int:
    """Return the number of rows of the longer table that scrolls."""
    return max(len(activity.topics), len(activity.groups))


def _from(items: Sequence[Item], first: int, count: int) -> Sequence[Item]:
    """Return so many items from the first one on, or the last ones."""
    first = max(min(first, len(items) - count), 0)
    return items[first : first + count]


def _title(cluster: str, activity: ClusterActivity | None, view: View) -> Text:
    words = [f"minimq {cluster}", "PAUSED" if view.is_paused else ""]
    if activity is not None:
        come = sum(each.in_per_s or 0.0 for each in activity.brokers)
        go = sum(each.out_per_s or 0.0 for each in activity.brokers)
        words.append(
            f"brokers {len(activity.brokers)}  topics {activity.topic_count:,}  groups {len(activity.groups):,}"
        )
        words.append(f"in {come:,.0f}/s  out {go:,.0f}/s")
    return Text("   ".join(filter(None, words)), style="bold", no_wrap=True, overflow="ellipsis")


def _table(headings: Sequence[str], items: Sequence[object], row: Callable[..., Sequence[str]]) -> Grid:
    table = Grid(box=None, pad_edge=False, header_style="bold cyan", expand=True)
    for number, heading in enumerate(headings):
        table.add_column(
            heading, justify="right" if number else "left", no_wrap=True, overflow="ellipsis", ratio=1 if number else 3
        )
    for item in items:
        table.add_row(*map(printable, row(item)))
    return table


def _broker_row(item: BrokerActivity) -> Sequence[str]:
    status, report = item.status, item.status.report
    name = f"{status.broker_name} {status.broker_id}" if status.broker_id else status.broker_name
    if report is None:
        return name, "away" if status.away_since else "silent", "", "", "", ""
    role = report.replication.role
    rates = _rate(item.in_per_s), _rate(item.out_per_s)
    return name, "" if role == "alone" else role, *rates, size_of(report.disk_bytes), f"{report.disk_used:.0%}"


def _topic_row(item: TopicActivity) -> Sequence[str]:
    return item.topic, _rate(item.in_per_s), f"{item.messages:,}"


def _group_row(item: GroupActivity) -> Sequence[str]:
    group = item.group
    behind = duration_of(group.lag_s) if group.lag else ""
    return group.group, f"{len(group.members)}", _rate(item.out_per_s), f"{group.lag:,}", behind


def _rate(per_s: float | None) -> str:
    return "" if per_s is None else f"{per_s:,.0f}"
