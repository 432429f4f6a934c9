"""Progress of a command on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Show each sentence within the block: in place of the one before on a terminal, else as a line."""
    if not sys.stderr.isatty():
        yield lambda sentence: click.echo(sentence, err=True)
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("") as status:
        yield lambda sentence: status.update(escape(sentence))


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None]]:
    """Show how many messages of how many are done, on a terminal alone; the bar is gone at the end of the block."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)
