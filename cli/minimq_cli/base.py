"""The base of all commands: declaration of options, output of results and tables, and handling of Ctrl-C."""

from __future__ import annotations

import codecs
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from minimq.admin.texts import instant_of, printable
from minimq.admin.views import Row, Table, json_text
from minimq_common.errors import MinimqError, NoPermission
from minimq_common.model import Permission, TopicRoute

if TYPE_CHECKING:
    from rich.table import Table as Grid

#: Prefixes of the values of the `..._PORT` variables that Kubernetes sets for the services of a namespace.
_SERVICE_LINKS = ("tcp://", "udp://", "sctp://")

#: Columns with sentences or lists, which may be folded.
_SENTENCES = ("what", "note", "state", "reason", "topics", "brokers", "slaves", "names", "keys", "rules", "seen_by")
#: Wider than any terminal.
_UNLIMITED = 1_000_000


class Option(click.Option):
    """An option whose help names its variable; an empty variable is an empty value, as on the command line."""

    def __init__(self, flags: Sequence[str], **attributes: Any) -> None:
        super().__init__(flags, show_envvar=True, **attributes)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of the variable, even if it is empty: click treats an empty one as unset."""
        value = super().resolve_envvar_value(ctx)
        if self.name == "port" and value is not None and value.startswith(_SERVICE_LINKS):
            return None
        variable = self.envvar or f"{ctx.auto_envvar_prefix}_{str(self.name).upper()}"
        return os.environ.get(variable) if value is None and isinstance(variable, str) else value


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal, never in scripts; stdout is for results. Raises `click.Abort`."""
    if yes or not sys.stdin.isatty():
        return
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # click aborts alike on Ctrl-C and on "no"
            click.echo(err=True)
            raise KeyboardInterrupt from None
        raise


def tell(sentences: Iterable[str]) -> None:
    """Print sentences on stderr."""
    for sentence in sentences:
        click.echo(sentence, err=True)


def show_json(value: object) -> None:
    """Print a value as JSON; times in ISO 8601."""
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    click.echo(json.dumps(value, indent=2, ensure_ascii=not is_utf8, default=json_text))


def wait_for_route(
    nameserver: str,
    topic: str,
    max_wait_s: float,
    option: str,
    *,
    wait: Callable[[float], object] = time.sleep,
    only: Callable[[MinimqError], bool] = lambda error: error.retriable,
) -> TopicRoute:
    """Return the route of a topic; wait for servers that are not reachable. Raises `MinimqError`."""
    from minimq.admin.admin import Admin
    from minimq.connection.master_calls import with_retries

    with Admin(nameserver) as admin:
        return with_retries(lambda _: admin.route(topic), max_wait_s, wait=wait, option=option, again=only)


def check_permission(route: TopicRoute, wanted: Permission) -> None:
    """Raise `NoPermission` if a topic is not readable, or not writable, on any of its brokers."""
    queues, topic = route.queues, route.topic
    if wanted == Permission.WRITE and any(route.master_of(data.broker_name) is None for data in queues):
        return  # nothing can be written now, whatever the permissions are
    if queues and not any(data.permission & wanted for data in queues):
        what = "readable" if wanted == Permission.READ else "writable"
        names = ", ".join(data.broker_name for data in queues)
        raise NoPermission(
            f"topic {topic} is not {what} on {names}: the topic does not allow it, or the broker does not allow it of "
            f"any topic; see `minimq topic describe {topic}` and `minimq cluster status`, then `minimq topic update "
            f"{topic} --permission read-write` or `minimq cluster permission {queues[0].broker_name} read-write`"
        )


@contextmanager
def stop_on_signal(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """Within the block, the first SIGINT or SIGTERM sets the event, a second one raises `KeyboardInterrupt`."""
    told = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if told.is_set():
            raise KeyboardInterrupt
        told.set()

    former = {number: signal.signal(number, on_signal) for number in numbers or (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def interrupt_later() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block; a second one is not delayed."""
    with stop_on_signal(signal.SIGINT) as told:
        yield
    if told.is_set():
        raise KeyboardInterrupt


def show_table(table: Table, rows: Sequence[Row], *, without: Collection[str] = ()) -> None:
    """Print rows. On a terminal, sentences are folded between words; names and numbers stay whole, for copying."""
    if not rows:
        click.echo(table.empty, err=True)
        return
    from rich.console import Console

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED
    console = Console(width=width, highlight=False, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(grid_of(table, rows, without=without), crop=False)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


def grid_of(table: Table, rows: Sequence[Row], *, without: Collection[str] = ()) -> Grid:
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    cells = {key: [_to_text(row[key]) for row in rows] for key in table.headings if key not in without}
    for key, texts in cells.items():
        is_number = any(isinstance(row[key], int | float) for row in rows)
        whole = " ".join(texts).split() if key in _SENTENCES else texts
        least = max(map(cell_len, (table.headings[key], *whole)))
        grid.add_column(table.headings[key], justify="right" if is_number else "left", min_width=least)
    for row in zip(*cells.values(), strict=True):
        grid.add_row(*map(Text, row))
    return grid


def _to_text(value: object) -> str:
    match value:
        case None | []:
            text = "-"
        case int() | float():
            text = f"{value:,}"
        case datetime():
            text = instant_of(value)
        case list():
            text = ", ".join(map(str, value))
        case _:
            text = str(value)
    return printable(" ".join(text.splitlines()))
