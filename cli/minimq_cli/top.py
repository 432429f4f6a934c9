"""`minimq top`: the activity of a cluster, live."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from minimq.admin.operation import Param
from minimq.admin.texts import duration_of, printable, size_of
from minimq.admin.views import Table, columns, row_of
from minimq_cli.base import grid_of
from minimq_cli.commands import declared, output_param
from minimq_common.errors import MinimqError

if TYPE_CHECKING:
    from minimq.admin.activity import ActivityReader, BrokerActivity, ClusterActivity

#: Timeout of each call in seconds; on a screen, a server that hangs delays a refresh by it.
_TIMEOUT_S, _SCREEN_TIMEOUT_S = 5.0, 2.0
#: Exit status of a command that SIGTERM ended, as in shells.
_TERMINATED = 143
#: Lines of the screen below title and problems that are no rows: headings with their lines, and two to spare.
_FRAME = 8
_MAX_PROBLEMS = 4
#: Lines of a refresh that is printed without a screen.
_PRINTED = 60

_BROKERS = Table(
    "no brokers", columns("broker id role in_per_s out_per_s disk full", in_per_s="In/s", out_per_s="Out/s")
)
_TOPICS = Table("no topics", columns("topic in_per_s messages", in_per_s="In/s"))
_GROUPS = Table("no groups", columns("group members out_per_s lag behind", out_per_s="Out/s"))

_INTERVAL = Param(low=0.2, high=3600, metavar="SECONDS", help="Seconds between two refreshes.")
_OUTPUT = output_param("table", "json", "jsonl", help="Tables, or one JSON object on a line for each refresh.")


@declared("top", "Show the activity of the cluster, live.")
def top(
    nameserver: str,
    *,
    interval: Annotated[float, _INTERVAL] = 2.0,
    once: Annotated[bool, Param(help="Print the activity of one interval, and exit.")] = False,
    output: Annotated[str, _OUTPUT] = "table",
) -> None:
    """Show brokers, topics and groups with their rates, problems first, and refresh them until Ctrl-C.

    The busiest topics are refreshed each time, the others in turn. On a screen, each call to a server times out after
    2 s. Without a terminal, it prints each refresh below the last.

    \b
    Examples:
      minimq top
      minimq top --once -o jsonl | jq '.groups[0]'
    """
    from minimq.admin.activity import ActivityReader
    from minimq.admin.admin import Admin

    is_live = output == "table" and not once and sys.stdin.isatty() and sys.stdout.isatty()
    with Admin(nameserver, timeout_s=_SCREEN_TIMEOUT_S if is_live else _TIMEOUT_S) as admin:
        reader = ActivityReader(admin)
        if is_live:
            _show(nameserver, reader, interval)
            return
        reader.read()  # rates are known from the second read on
        while True:
            time.sleep(interval)
            activity = reader.read()
            if output != "table":
                click.echo(json.dumps(_to_json(activity)))
            else:
                Console().print(screen(nameserver, activity, "", _PRINTED))
            if once:
                return


def _show(nameserver: str, reader: ActivityReader, interval: float) -> None:
    """Refresh the screen until Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # restores the terminal
    activity, trouble = None, ""
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(nameserver, activity, trouble, live.console.size.height), refresh=True)
            try:
                activity, trouble = reader.read(), ""
            except MinimqError as error:  # the next refresh retries
                trouble = str(error)
            live.update(screen(nameserver, activity, trouble, live.console.size.height), refresh=True)
            time.sleep(interval)


def _rows(activity: ClusterActivity) -> dict[str, list[dict[str, Any]]]:
    of_broker, of_group = ("broker_name", "broker_id", "address", "error"), ("group", "lag", "lag_s")
    return {
        "brokers": [
            row_of(each.status, keep=of_broker, in_per_s=each.in_per_s, out_per_s=each.out_per_s)
            for each in activity.brokers
        ],
        "topics": [row_of(each) for each in activity.topics],
        "groups": [
            row_of(each.group, keep=of_group, members=len(each.group.members), out_per_s=each.out_per_s)
            for each in activity.groups
        ],
    }


def _to_json(activity: ClusterActivity) -> dict[str, object]:
    problems = [row_of(each, "text") for each in activity.problems]
    return {"problems": problems, "topic_count": activity.topic_count, **_rows(activity)}


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    rates: dict[str, Any] = {
        key: None if row[key] is None else round(row[key]) for key in ("in_per_s", "out_per_s") if key in row
    }
    return {**row, **rates, "behind": duration_of(row["lag_s"]) if row.get("lag") else None}


def _broker_columns(item: BrokerActivity) -> dict[str, Any]:
    status, report = item.status, item.status.report
    if report is None:
        return {"role": "offline" if status.offline_since else "silent", "disk": None, "full": None}
    role = None if report.replication.role == "alone" else report.replication.role
    return {"role": role, "disk": size_of(report.disk_bytes), "full": f"{report.disk_used:.0%}"}


def screen(cluster: str, activity: ClusterActivity | None, trouble: str, height: int) -> RenderableType:
    """Return the content of the screen; `trouble` is the error of the last read, if any."""
    parts: list[RenderableType] = [_title(cluster, activity)]
    if trouble:
        parts.append(Text(printable(trouble), style="bold red"))
    if activity is None:
        return Group(*parts, Text("" if trouble else "reading..."))
    problems = activity.problems[:_MAX_PROBLEMS]
    parts += [Text(printable(each.text), style="red", no_wrap=True, overflow="ellipsis") for each in problems]
    if len(activity.problems) > len(problems):
        parts.append(Text(f"and {len(activity.problems) - len(problems)} other problems", style="red"))
    room, rows = max(height - _FRAME - len(parts), 3), _rows(activity)
    found = zip(rows["brokers"], activity.brokers, strict=True)
    brokers = [{**row, **_broker_columns(item)} for row, item in found][: room // 3]
    groups = rows["groups"][: room // 3]
    topics = rows["topics"][: room - len(brokers) - len(groups)]
    for table, shown in ((_BROKERS, brokers), (_TOPICS, topics), (_GROUPS, groups)):
        parts.append(grid_of(table, [_readable(row) for row in shown]))
    left_out = len(activity.topics) - len(topics), len(activity.groups) - len(groups)
    if any(left_out):
        parts.append(Text("and {:,} other topics, {:,} other groups: --output jsonl has all".format(*left_out)))
    return Group(*parts)


def _title(cluster: str, activity: ClusterActivity | None) -> Text:
    words = [f"minimq {cluster}"]
    if activity is not None:
        come = sum(each.in_per_s or 0.0 for each in activity.brokers)
        go = sum(each.out_per_s or 0.0 for each in activity.brokers)
        words.append(
            f"brokers {len(activity.brokers)}  topics {activity.topic_count:,}  groups {len(activity.groups):,}"
        )
        words.append(f"in {come:,.0f}/s  out {go:,.0f}/s")
    return Text("   ".join(words), style="bold", no_wrap=True, overflow="ellipsis")
