"""Tables, plans and results, as all faces show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: A row of a table, by its keys in JSON.
Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a table."""

    #: Printed instead of a table without rows: "no topics".
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
    """The effect of an operation, told before it is done."""

    sentences: Sequence[str]
    warnings: Sequence[str] = ()
    #: A command asks it on a terminal.
    question: str = ""
    #: For `--dry-run --output json`; shown to people as well if there is a table.
    rows: Sequence[Mapping[str, object]] = ()
    table: Table | None = None
    #: False if a part could not be looked at: a dry run ends with status 1.
    is_complete: bool = True
    #: Values that a form carries from the plan to the end, by `Parameter.key`.
    carried: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The result of an operation for people and programs."""

    #: `--output jsonl` prints each item of a list on a line.
    json: object
    lines: Sequence[str | Rows] = ()
    #: Printed on stderr.
    notes: Sequence[str] = ()
    #: False if the command ends with status 1 although something was done.
    is_complete: bool = True
    #: Address of the page that shows the effect, if it is not that of the form.
    to: str = ""
