"""Tables, plans and results, as all faces show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: A row of a table, by its keys in JSON.
Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a table.

    Attributes:
        empty: printed instead of a table without rows: "no topics".
        headings: of the columns, by the keys of the rows.
    """

    empty: str
    headings: Mapping[str, str]


def columns(keys: str, /, **headings: str) -> Mapping[str, str]:
    """Return the headings of columns by their keys, which blanks divide: "read_queues" is headed "Read queues"."""
    return {key: headings.get(key, key.replace("_", " ").capitalize()) for key in keys.split()}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows under a table's headings; the columns in `without` are left out."""

    table: Table
    rows: Sequence[Mapping[str, object]]
    without: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The effect of an operation, told before it is done.

    Attributes:
        sentences: what will happen.
        warnings: what one may not want.
        question: that a command asks on a terminal; nothing if it is empty.
        rows: what will be, for `--dry-run --output json`.
        table: shows the rows to people; None shows the sentences alone.
        is_complete: False if a part could not be looked at: a dry run ends with status 1.
        carried: values that a form carries from the plan to the end, by `Parameter.key`.
    """

    sentences: Sequence[str]
    warnings: Sequence[str] = ()
    question: str = ""
    rows: Sequence[Mapping[str, object]] = ()
    table: Table | None = None
    is_complete: bool = True
    carried: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The result of an operation for people and programs.

    Attributes:
        json: printed by `--output json`; `--output jsonl` prints each item of a list on a line.
        lines: sentences and tables for people.
        notes: what is missing, on stderr.
        is_complete: False if the command ends with status 1 although something was done.
        to: address of the page that shows the effect, if it is not that of the form.
    """

    json: object
    lines: Sequence[str | Rows] = ()
    notes: Sequence[str] = ()
    is_complete: bool = True
    to: str = ""
