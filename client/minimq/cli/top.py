"""`minimq top`: the activity of a cluster, live."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import click

from minimq.cli.base import option
from minimq_common.errors import MiniMQError

if TYPE_CHECKING:
    from rich.live import Live

    from minimq.administration.activity import ClusterActivity
    from minimq.administration.activity_reader import ActivityReader
    from minimq.cli.keyboard import Keyboard
    from minimq.cli.top_screen import View

#: A server that hangs holds one look up for that long, in seconds.
_TIMEOUT_S = 2.0
#: Exit status of a command that SIGTERM ended, as in shells.
_TERMINATED = 143
#: Seconds between two looks at the keyboard.
_KEY_S = 0.1


@click.command(short_help="Show the activity of the cluster, live.")
@option(
    "--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between two looks."
)
@option("--once", is_flag=True, help="Look twice, print what was found, and exit.")
@option(
    "--output",
    type=click.Choice(("screen", "json")),
    default="screen",
    show_default=True,
    help="json: a line each time.",
)
@click.pass_obj
def top(nameserver: str, interval: float, once: bool, output: str) -> None:
    """Show brokers, topics and groups with their rates, what is wrong first, and refresh it again and again.

    The busiest topics are looked at each time, and the others in turn. A server that hangs is waited for 2 s at most.
    Keys: q quits, p pauses, r and n sort by rate or name, the arrows scroll. Without a terminal, it prints each look
    as it would be shown.

    \b
    Examples:
      minimq top
      minimq top --once --output json | jq '.groups[0]'
    """
    from minimq.admin import Admin
    from minimq.administration.activity_reader import ActivityReader

    with Admin(nameserver, timeout_s=_TIMEOUT_S) as admin:
        reader = ActivityReader(admin)
        if output == "json" or once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print(nameserver, _looks(reader, interval, once=once), output)
        else:
            _show(nameserver, reader, interval)


def _looks(reader: ActivityReader, interval: float, *, once: bool) -> Iterator[ClusterActivity]:
    """Yield what is there again and again; rates are known from the second look on."""
    reader.read()
    while True:
        time.sleep(interval)
        yield reader.read()
        if once:
            return


def _print(nameserver: str, looks: Iterator[ClusterActivity], output: str) -> None:
    from rich.console import Console

    from minimq.cli.top_screen import View, screen

    for activity in looks:
        if output == "json":
            click.echo(json.dumps(_to_json(activity)))
        else:
            rows = len(activity.brokers) + len(activity.topics) + len(activity.groups)
            Console().print(screen(nameserver, activity, "", View(has_keys=False), 3 * rows + 20))


def _show(nameserver: str, reader: ActivityReader, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from minimq.cli.keyboard import keyboard
    from minimq.cli.top_screen import View

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that the terminal is as it was
    console = Console()
    with (
        ThreadPoolExecutor(1) as thread,
        keyboard() as keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        _Session(nameserver, reader, interval, thread).run(live, keys, View())


class _Session:
    """One run on a terminal: another thread reads, so that keys work while a server hangs."""

    def __init__(self, nameserver: str, reader: ActivityReader, interval: float, thread: ThreadPoolExecutor) -> None:
        self._nameserver = nameserver
        self._reader, self._interval, self._thread = reader, interval, thread
        self._reading: Future[ClusterActivity] | None = None
        self._next_at = 0.0
        self._activity: ClusterActivity | None = None
        self._trouble = ""

    def run(self, live: Live, keys: Keyboard, view: View) -> None:
        """Show what there is until the user quits."""
        from minimq.cli.top_screen import rows_of, screen

        while True:
            self._read(view)
            shown = screen(self._nameserver, self._activity, self._trouble, view, live.console.size.height)
            live.update(shown, refresh=True)
            key = keys.key(_KEY_S)
            if key in ("q", "Q", "\x03", "\x04"):
                return
            if key is not None:
                _press(view, key, 0 if self._activity is None else rows_of(self._activity))

    def _read(self, view: View) -> None:
        if self._reading is not None and self._reading.done():
            try:
                self._activity, self._trouble = self._reading.result(), ""
            except MiniMQError as error:  # it may come back
                self._trouble = str(error)
            self._reading, self._next_at = None, time.monotonic() + self._interval
        if self._reading is None and not view.is_paused and time.monotonic() >= self._next_at:
            self._reading = self._thread.submit(self._reader.read)


def _press(view: View, key: str, rows: int) -> None:
    """Change what is shown; there are so many rows to scroll over."""
    from minimq.cli.keyboard import DOWN, UP
    from minimq.cli.top_screen import Order

    match key:
        case "p":
            view.is_paused = not view.is_paused
        case "r":
            view.order, view.first = Order.BUSIEST, 0
        case "n":
            view.order, view.first = Order.NAME, 0
        case _ if key == DOWN:
            view.first = min(view.first + 1, max(rows - 1, 0))
        case _ if key == UP:
            view.first = max(view.first - 1, 0)


def _to_json(activity: ClusterActivity) -> dict[str, object]:
    return {
        "problems": [each.text for each in activity.problems],
        "brokers": [
            {
                "broker": each.status.broker_name,
                "id": each.status.broker_id,
                "address": each.status.address,
                "error": each.status.error,
                "in_per_s": each.in_per_s,
                "out_per_s": each.out_per_s,
            }
            for each in activity.brokers
        ],
        "topic_count": activity.topic_count,
        "topics": [
            {"topic": each.topic, "messages": each.messages, "in_per_s": each.in_per_s} for each in activity.topics
        ],
        "groups": [
            {
                "group": each.group.group,
                "members": len(each.group.members),
                "lag": each.group.lag,
                "lag_s": each.group.lag_s,
                "out_per_s": each.out_per_s,
            }
            for each in activity.groups
        ],
    }
