"""`minimq top`: the activity of a cluster, live."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from minimq.admin.operation import Param
from minimq.admin.texts import duration_of, printable, size_of
from minimq.admin.views import row_of
from minimq_cli.commands import declared, output_param
from minimq_common.errors import MinimqError

if TYPE_CHECKING:
    from minimq.admin.activity import ActivityReader, BrokerActivity, ClusterActivity, GroupActivity, TopicActivity

#: Timeout of each call in seconds; on a screen, a server that hangs delays a refresh by it.
_TIMEOUT_S, _SCREEN_TIMEOUT_S = 5.0, 2.0
#: Exit status of a command that SIGTERM ended, as in shells.
_TERMINATED = 143
#: Seconds to wait for a key, and for the rest of an escape sequence.
_KEY_S, _ESCAPE_S = 0.1, 0.02
#: The arrow keys, as terminals send them.
_UP, _DOWN = "\x1b[A", "\x1b[B"
#: Lines of the screen below title and problems that are no rows of tables: headings, keys, and one to spare.
_FRAME = 5
_MAX_PROBLEMS = 4
#: Lines of a refresh that is printed without a screen.
_PRINTED = 60
_HELP = "q quit   p pause   r by rate   n by name   ↑ ↓ scroll"

Item = TypeVar("Item")
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
    """Show brokers, topics and groups with their rates, problems first, and refresh them until q or Ctrl-C.

    The busiest topics are refreshed each time, the others in turn. On a screen, each call to a server times out after
    2 s. Keys: q quits, p pauses, r and n sort by rate or name, the arrows scroll. Without a terminal, it prints each
    refresh below the last.

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
                Console().print(screen(nameserver, activity, "", View(has_keys=False), _PRINTED))
            if once:
                return


def _show(nameserver: str, reader: ActivityReader, interval: float) -> None:
    """Refresh the screen until the user quits. Another thread reads, so that keys work while a server hangs."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # restores the terminal
    activity, trouble, view = None, "", View()
    reading: Future[ClusterActivity] | None = None
    next_at = 0.0
    with ThreadPoolExecutor(1) as thread, _single_keys(), Live(screen=True, auto_refresh=False) as live:
        while True:
            if reading is not None and reading.done():
                try:
                    activity, trouble = reading.result(), ""
                except MinimqError as error:  # the next refresh retries
                    trouble = str(error)
                reading, next_at = None, time.monotonic() + interval
            if reading is None and not view.is_paused and time.monotonic() >= next_at:
                reading = thread.submit(reader.read)
            live.update(screen(nameserver, activity, trouble, view, live.console.size.height), refresh=True)
            key = _key()
            if key in ("q", "Q", "\x03", "\x04"):
                return
            if key is not None:
                _press(view, key, activity)


def _press(view: View, key: str, activity: ClusterActivity | None) -> None:
    rows = 0 if activity is None else max(len(activity.topics), len(activity.groups))
    match key:
        case "p":
            view.is_paused = not view.is_paused
        case "r" | "n":
            view.by_name, view.first = key == "n", 0
        case _ if key in (_UP, _DOWN):
            view.first = max(min(view.first + (1 if key == _DOWN else -1), rows - 1), 0)


def _key() -> str | None:
    """Return the next key; None if none is pressed within `_KEY_S`, or stdin has ended."""
    fd = sys.stdin.fileno()
    if not select.select([fd], [], [], _KEY_S)[0]:
        return None
    data = os.read(fd, 1)
    while data.startswith(b"\x1b") and len(data) < len(_UP) and select.select([fd], [], [], _ESCAPE_S)[0]:
        data += os.read(fd, 1)
    return data.decode(errors="replace") or None


@contextmanager
def _single_keys() -> Iterator[None]:
    """Read keys one by one and without echo, within the block."""
    fd = sys.stdin.fileno()
    former = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, former)


def _to_json(activity: ClusterActivity) -> dict[str, object]:
    of_broker, of_group = ("broker_name", "broker_id", "address", "error"), ("group", "lag", "lag_s")
    return {
        "problems": [each.text for each in activity.problems],
        "brokers": [
            row_of(each.status, keep=of_broker, in_per_s=each.in_per_s, out_per_s=each.out_per_s)
            for each in activity.brokers
        ],
        "topic_count": activity.topic_count,
        "topics": [row_of(each) for each in activity.topics],
        "groups": [
            row_of(each.group, keep=of_group, members=len(each.group.members), out_per_s=each.out_per_s)
            for each in activity.groups
        ],
    }


@dataclass
class View:
    """The display settings that keys change."""

    by_name: bool = False
    #: Number of the first row of topics and groups.
    first: int = 0
    is_paused: bool = False
    #: Keys are read, so their help is shown.
    has_keys: bool = True


def screen(cluster: str, activity: ClusterActivity | None, trouble: str, view: View, height: int) -> RenderableType:
    """Return the content of the screen; `trouble` is the error of the last read, if any."""
    parts: list[RenderableType] = [_title(cluster, activity, view)]
    if trouble:
        parts.append(Text(printable(trouble), style="bold red"))
    if activity is None:
        return Group(*parts, Text("" if trouble else "reading..."))
    problems = activity.problems[:_MAX_PROBLEMS]
    parts += [Text(printable(each.text), style="red", no_wrap=True, overflow="ellipsis") for each in problems]
    if len(activity.problems) > len(problems):
        parts.append(Text(f"and {len(activity.problems) - len(problems)} other problems", style="red"))
    room = max(height - _FRAME - len(parts), 3)
    brokers = activity.brokers[: max(room // 3, 1)]
    left = room - len(brokers)
    # Half for each; one gets the rows that the other does not need.
    group_rows = max(min(len(activity.groups), max(left // 2, left - len(activity.topics))), 1)
    topic_rows = max(left - group_rows, 1)
    topics: Sequence[TopicActivity] = activity.topics
    groups: Sequence[GroupActivity] = activity.groups
    if view.by_name:
        topics = sorted(topics, key=lambda item: item.topic)
        groups = sorted(groups, key=lambda item: item.group.group)
    parts += [
        _table(("Broker", "Role", "In/s", "Out/s", "Disk", "Full"), brokers, _broker_row),
        _table(("Topic", "In/s", "Messages"), _from(topics, view.first, topic_rows), _topic_row),
        _table(("Group", "Members", "Out/s", "Lag", "Behind"), _from(groups, view.first, group_rows), _group_row),
    ]
    if view.has_keys:
        parts.append(Text(_HELP, style="dim"))
    elif len(topics) > topic_rows or len(groups) > group_rows:
        left_out = max(len(topics) - topic_rows, 0), max(len(groups) - group_rows, 0)
        parts.append(Text("and {:,} other topics, {:,} other groups: --output jsonl has all".format(*left_out)))
    return Group(*parts)


def _from(items: Sequence[Item], first: int, count: int) -> Sequence[Item]:
    """Return a page of items from the first one on, or the last page."""
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
        return name, "offline" if status.offline_since else "silent", "", "", "", ""
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
