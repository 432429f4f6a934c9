"""Tables of commands, readable on a terminal of any width.

A table is printed as rows and columns if it fits. Sentences are folded between words for that, but never to less than
`_SENTENCE_WIDTH`. If it does not fit, each row is printed as a record, with one line for each column. Names, addresses
and numbers are never folded or shortened, so that they can be copied.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import click

from minimq.operations.views import Row, Table
from minimq.operations.words import printable

#: A longer cell with blanks is a sentence, or a list; shorter ones, such as "3d 4h", stay on one line.
_SENTENCE_WIDTH = 24
#: Blanks between two columns.
_GAP = 2
#: No terminal is as wide.
_UNLIMITED = 1_000_000


def show_table(table: Table, rows: Sequence[Row], *, without: Collection[str] = ()) -> None:
    """Print rows as wide as the terminal; a pipe gets each row on one line.

    Args:
        table: which columns there are.
        rows: by the keys of the columns; other keys are ignored. An empty table is reported on stderr.
        without: keys of columns without information about these rows.
    """
    if not rows:
        click.echo(table.empty, err=True)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    headings = {key: heading for key, heading in table.headings.items() if key not in without}
    for line in lines_of(headings, rows, width):
        click.echo(line)


def lines_of(headings: Mapping[str, str], rows: Sequence[Row], width: int | None) -> list[str]:
    """Return the lines that show rows within a width, without blanks at their ends.

    Args:
        headings: of the columns, by the keys of the rows.
        rows: at least one.
        width: of a line, in characters; None if it has no limit. Only a single word can be longer.
    """
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
    """Return the least and the best width of a column."""
    best = max(map(_width, (heading, *cells)))
    sentences = [cell for cell in cells if " " in cell and _width(cell) > _SENTENCE_WIDTH]
    whole = [cell for cell in cells if cell not in sentences]
    words = [word for text in (heading, *sentences) for word in text.split()]
    least = max(_SENTENCE_WIDTH if sentences else 0, *map(_width, (*whole, *words)))
    return least, best


def _fit(ranges: Sequence[tuple[int, int]], limit: int) -> list[int] | None:
    """Return the widths of columns with these least and best widths; None if they do not fit."""
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
    """Yield the lines of rows and columns; numbers are on the right."""
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
    """Yield a block of lines for each row, with a line for each column."""
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
    """Return the width of a text on a terminal."""
    from rich.cells import cell_len

    return cell_len(text)


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
    return printable(" ".join(text.splitlines()))  # otherwise each line of a row would look like a row of its own
