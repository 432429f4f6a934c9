"""The base of all commands: declaration of options, output of results and tables, and handling of Ctrl-C."""

from __future__ import annotations

import codecs
import difflib
import json
import os
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any

import click

from minimq.admin.texts import instant_of, printable
from minimq.admin.views import Row, Table, json_text
from minimq_common.errors import NoPermission, TopicNotFound, TopicUnavailable
from minimq_common.model import Permission, TopicRoute

#: Prefixes of the values of the `..._PORT` variables that Kubernetes sets for the services of a namespace.
_SERVICE_LINKS = ("tcp://", "udp://", "sctp://")

#: Longer cells with blanks are sentences or lists, and may be folded; shorter ones, such as "3d 4h", stay on one line.
_SENTENCE_WIDTH = 24
#: Blanks between two columns.
_GAP = 2
#: Wider than any terminal.
_UNLIMITED = 1_000_000


class Option(click.Option):
    """An option whose help names its variable; an empty variable is an empty value, as on the command line."""

    def __init__(self, flags: Sequence[str], **attributes: Any) -> None:
        super().__init__(flags, show_envvar=True, **attributes)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of the variable, even if it is empty: click treats an empty one as unset.

        Kubernetes sets MINIMQ_CONSOLE_PORT to tcp://HOST:PORT for a service named minimq-console: that is ignored.
        """
        value = super().resolve_envvar_value(ctx)
        if self.name == "port" and value is not None and value.startswith(_SERVICE_LINKS):
            return None
        variable = self.envvar or f"{ctx.auto_envvar_prefix}_{str(self.name).upper()}"
        return os.environ.get(variable) if value is None and isinstance(variable, str) else value


class Group(click.Group):
    """Suggests the nearest command for an unknown name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; the error for an unknown name suggests the nearest one."""
        known, given = self.list_commands(ctx), args[0]
        near = [each for each in known if given and each.startswith(given)] or difflib.get_close_matches(
            given, known, 1
        )
        if near and given not in known and not ctx.resilient_parsing:
            ctx.fail(f"No such command {given!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


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


def check_allowed(
    nameserver: str,
    topic: str,
    wanted: Permission,
    *,
    max_wait_s: float = 0.0,
    option_name: str = "",
    wait: Callable[[float], object] | None = None,
) -> TopicRoute | None:
    """Return the route of a topic that is readable or writable on one of its brokers. Raises `MinimqError`.

    Returns None for a topic to be written that is missing, since brokers may create it, or whose brokers are all
    offline. `wait` replaces `time.sleep`.
    """
    from minimq.admin.admin import Admin
    from minimq.connection.master_calls import with_retries

    with Admin(nameserver) as admin:

        def attempt(_left_s: float) -> TopicRoute | None:
            try:
                return admin.route(topic)
            except (TopicNotFound, TopicUnavailable):
                if wanted == Permission.WRITE:
                    return None
                raise

        route = with_retries(attempt, max_wait_s, wait=wait, option=option_name) if max_wait_s else attempt(0.0)
    if route is None:
        return None
    queues = route.queues
    # Without a master nothing can be written now, whatever the permissions are.
    if any(route.master_of(data.broker_name) is None for data in queues) and wanted == Permission.WRITE:
        return route
    if queues and not any(data.permission & wanted for data in queues):
        what = "readable" if wanted == Permission.READ else "writable"
        names = ", ".join(data.broker_name for data in queues)
        raise NoPermission(
            f"topic {topic} is not {what} on {names}: the topic does not allow it, or the broker does not allow it of "
            f"any topic; see `minimq topic describe {topic}` and `minimq cluster status`, then `minimq topic update "
            f"{topic} --permission read-write` or `minimq cluster permission {queues[0].broker_name} read-write`"
        )
    return route


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Within the block, the first SIGINT or SIGTERM sets the event, a second one raises `KeyboardInterrupt`."""
    told = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if told.is_set():
            raise KeyboardInterrupt
        told.set()

    former = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def interrupt_later() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block; a second one is not delayed."""
    told: list[int] = []

    def on_interrupt(number: int, _frame: FrameType | None) -> None:
        if told:
            raise KeyboardInterrupt
        told.append(number)

    former = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if told:
        raise KeyboardInterrupt


# ---- Tables, readable on a terminal of any width ------------------------------------------------------
#
# A table is printed as rows and columns if it fits. Sentences are folded between words for that, but never to less than
# `_SENTENCE_WIDTH`. If it does not fit, each row is printed as a record, with one line for each column. Names,
# addresses and numbers are never folded or shortened, so that they can be copied.


def show_table(table: Table, rows: Sequence[Row], *, without: Collection[str] = ()) -> None:
    """Print rows as wide as the terminal; a pipe gets each row on one line. An empty table is reported on stderr."""
    if not rows:
        click.echo(table.empty, err=True)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    headings = {key: heading for key, heading in table.headings.items() if key not in without}
    for line in lines_of(headings, rows, width):
        click.echo(line)


def lines_of(headings: Mapping[str, str], rows: Sequence[Row], width: int | None) -> list[str]:
    """Format rows within a width; only a line with a long word exceeds it."""
    cells = [[_to_text(row[key]) for key in headings] for row in rows]
    names = list(headings.values())
    limit = _UNLIMITED if width is None else width
    widths = _fit(
        [_range_of(name, column) for name, column in zip(names, zip(*cells, strict=True), strict=True)], limit
    )
    if widths is None:
        return list(_records(names, cells, limit))
    numbers = [any(isinstance(row[key], int | float) for row in rows) for key in headings]
    return list(_grid(names, cells, widths, numbers))


def _range_of(heading: str, cells: Sequence[str]) -> tuple[int, int]:
    best = max(map(_width, (heading, *cells)))
    sentences = [cell for cell in cells if " " in cell and _width(cell) > _SENTENCE_WIDTH]
    whole = [cell for cell in cells if cell not in sentences]
    words = [word for text in (heading, *sentences) for word in text.split()]
    least = max(_SENTENCE_WIDTH if sentences else 0, *map(_width, (*whole, *words)))
    return least, best


def _fit(ranges: Sequence[tuple[int, int]], limit: int) -> list[int] | None:
    """Return the widths of columns from their minimum and preferred widths; None if they do not fit."""
    left = limit - _GAP * (len(ranges) - 1) - sum(least for least, _ in ranges)
    if left < 0:
        return None
    # The widest columns shrink first.
    level = max(best for _, best in ranges)
    while sum(min(max(least, level), best) - least for least, best in ranges) > left:
        level -= 1
    return [min(max(least, level), best) for least, best in ranges]


def _grid(
    names: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], numbers: Sequence[bool]
) -> Iterator[str]:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for name, width, is_number in zip(names, widths, numbers, strict=True):
        grid.add_column(name, justify="right" if is_number else "left", width=width)
    for row in cells:
        grid.add_row(*map(Text, row))
    console = Console(width=_UNLIMITED, highlight=False, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(grid)
    for line in capture.get().splitlines():
        yield line.rstrip()


def _records(names: Sequence[str], cells: Sequence[Sequence[str]], limit: int) -> Iterator[str]:
    indent = max(map(_width, names)) + _GAP
    for number, row in enumerate(cells):
        if number:
            yield ""
        for name, cell in zip(names, row, strict=True):
            width = max(limit - indent, _SENTENCE_WIDTH)
            lines = textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False) or [""]
            for place, line in enumerate(lines):
                yield f"{'' if place else f'{name}:':{indent}}{line}".rstrip()


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


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
    return printable(
        text.replace("\r\n", " ").replace("\n", " ")
    )  # otherwise each line of a row would look like a row of its own
