"""What all commands share: how options are declared, how results are shown, and what Ctrl-C does."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any, TypeVar

import click

from minimq_common.errors import NoPermission, TopicNotFound
from minimq_common.model import Permission

F = TypeVar("F", bound=Callable[..., Any])

#: A row of a table by the keys that it has in JSON.
Row = Mapping[str, object]


def option(*flags: str, **attributes: Any) -> Callable[[F], F]:  # noqa: ANN401 - those of click.option
    """Declare an option whose help names its variable and its default."""
    return click.option(*flags, show_envvar=True, **attributes)


def output_option(command: F) -> F:
    """Add `--output` to a command that prints a table."""
    choice = click.Choice(("table", "json"))
    return option("--output", type=choice, default="table", show_default=True, help="How the result is printed.")(
        command
    )


def show(output: str, rows: Sequence[Row], headings: Mapping[str, str]) -> None:
    """Print rows as a table with these headings, by the keys of the rows, or as a JSON list with everything."""
    if output == "json":
        show_json(rows)
    else:
        show_table(rows, headings)


def show_json(value: object) -> None:
    """Print a value as JSON; times in ISO 8601."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_to_json))


def show_table(rows: Sequence[Row], headings: Mapping[str, str]) -> None:
    """Print rows as a table; numbers to the right."""
    from io import StringIO

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for key, heading in headings.items():
        is_number = any(isinstance(row[key], int | float) for row in rows)
        # Sentences and lists are folded where the terminal is narrow; names, addresses and numbers never.
        is_long = any(isinstance(row[key], str | list) and " " in _to_text(row[key]) for row in rows)
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold", no_wrap=not is_long)
    for row in rows:
        table.add_row(*(Text(_to_text(row[key])) for key in headings))
    # What reads the output of a pipe wants one row to be one line.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else max(1000, 100 * len(headings))
    text = StringIO()
    console = Console(file=text, width=10_000, highlight=False, color_system=None, force_terminal=False)
    console.width = max(width, console.measure(table).minimum)
    console.print(table)
    for line in text.getvalue().splitlines():
        click.echo(line.rstrip())


def count_of(count: int, thing: str) -> str:
    """Return "1 message", "2 messages"."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def size_of(size: float) -> str:
    """Return a number of bytes in B, KB, MB or GB, whichever reads best."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:.0f} B"


def duration_of(seconds: float) -> str:
    """Return a time in its two largest units: "3d 4h"."""
    whole = max(int(seconds), 0)
    for unit, factor, next_unit, next_factor in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= factor:
            return f"{whole // factor}{unit} {whole % factor // next_factor}{next_unit}"
    return f"{whole}s"


def check_allowed(nameserver: str, topic: str, wanted: Permission) -> None:
    """Raise `NoPermission` when a topic is not readable or not writable on any of its brokers, `TopicNotFound` as well.

    A topic that is not there to be written is no matter: brokers may be allowed to make it.
    """
    from minimq.administration.admin import Admin

    with Admin(nameserver) as admin:
        try:
            route = admin.route(topic)
        except TopicNotFound:
            if wanted == Permission.WRITE:
                return
            raise
    queues = route.queues
    # Without a master nothing can be written for the moment, which is no matter of permissions.
    if any(route.master_of(data.broker_name) is None for data in queues) and wanted == Permission.WRITE:
        return
    if queues and not any(data.permission & wanted for data in queues):
        what = "readable" if wanted == Permission.READ else "writable"
        names = ", ".join(data.broker_name for data in queues)
        raise NoPermission(
            f"topic {topic} is not {what} on {names}: the topic does not allow it, or the broker does not allow it of "
            f"any topic; see `minimq topic describe {topic}` and `minimq cluster status`, then `minimq topic update "
            f"{topic} --permission read-write` or `minimq cluster permission {queues[0].broker_name} read-write`"
        )


def _to_json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"no JSON for {value!r}")


def _to_text(value: object) -> str:
    match value:
        case None | []:
            text = "-"
        case int() | float():
            text = f"{value:,}"
        case datetime():
            text = f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
        case list():
            text = ", ".join(map(str, value))
        case _:
            text = str(value)
    return text


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
    """Within the block, Ctrl-C waits for its end; a second one does not."""
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
