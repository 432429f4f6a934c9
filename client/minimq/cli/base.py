"""What all commands share: how options are declared, how results are shown, and what Ctrl-C does."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any, TypeVar

import click

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


def show_table(rows: Sequence[Row], headings: Mapping[str, str], title: str | None = None) -> None:
    """Print rows as a table; numbers to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for key, heading in headings.items():
        is_number = any(isinstance(row[key], int | float) for row in rows)
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_to_text(row[key])) for key in headings))
    # What reads the output of a pipe wants one row to be one line.
    width = None if sys.stdout.isatty() else max(1000, 100 * len(headings))
    Console(file=sys.stdout, width=width, highlight=False).print(table)


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
            text = value.isoformat(sep=" ", timespec="seconds")
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
