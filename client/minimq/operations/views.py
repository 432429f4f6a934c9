"""Tables, plans and results, as all faces show them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from minimq.operations.texts import left_out
from minimq_common.model import AwayBroker, MessageQueue, Permission, permission_name

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
    #: It loses and exposes nothing, so there is no question.
    is_harmless: bool = False
    #: For `--dry-run --output json`; shown to people as well if there is a table.
    rows: Sequence[Mapping[str, object]] = ()
    table: Table | None = None
    #: What the view says about the cluster as it was: it makes no call after a change.
    seen: Any = None
    #: False if a part could not be looked at: a dry run ends with status 1.
    is_complete: bool = True


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


# ---- Results as rows ----------------------------------------------------------------------------------

#: The names of fields in rows.
_NAMES = {
    "broker_name": "broker",
    "broker_id": "id",
    "queue_id": "queue",
    "is_published": "published",
    "replica_id": "replica",
}


def row_of(item: Any, *properties: str, keep: Sequence[str] = (), **changes: object) -> dict[str, Any]:
    """Return fields and properties of a dataclass by their names in rows; a queue is three of them."""
    row: dict[str, Any] = {}
    for name in (*(keep or [each.name for each in dataclasses.fields(item)]), *properties):
        value = getattr(item, name)
        if isinstance(value, MessageQueue):
            row |= {"topic": value.topic, "broker": value.broker_name, "queue": value.queue_id}
        else:
            key = name_in_rows(name)
            row[key] = changes[key] if key in changes else plain(value)
    return {**row, **changes}


def name_in_rows(name: str) -> str:
    """Return the name of a field in rows."""
    return _NAMES.get(name, name)


def plain(value: Any) -> Any:
    """Return a value as rows have it."""
    if type(value) in _AS_IT_IS:
        return value
    for kind, convert in _CONVERT:
        if isinstance(value, kind):
            return convert(value)
    return row_of(value) if dataclasses.is_dataclass(value) else value


_AS_IT_IS = frozenset({type(None), bool, int, float, str, datetime})
_CONVERT: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    (Permission, permission_name),
    (AwayBroker, lambda away: row_of(away, keep=("broker_name", "since", "stopped", "queues"))),
    (MessageQueue, str),
    (Enum, lambda value: value.value),
    (bytes, lambda value: value.decode(errors="replace")),
    (Mapping, lambda values: {str(name): plain(each) for name, each in values.items()}),
    ((tuple, list, set, frozenset), lambda values: [plain(each) for each in values]),
)


def away_rows(away: Iterable[AwayBroker]) -> list[dict[str, Any]]:
    """Return brokers that are away, with the number of queues of each."""
    return [plain(each) for each in away]


def deletion_view(what: str, name: str, away: Iterable[AwayBroker], *, kept: str = "", unless: str = "") -> View:
    """Return the view of a deletion, with the brokers that were away."""
    return View(
        json={what: name, "away": away_rows(away)},
        lines=[f"{what} {name} deleted{kept}"],
        notes=left_out(away, f"brings the {what} back when it starts{unless}: then delete it again"),
    )


def json_text(value: object) -> object:
    """Return what JSON has no type for; a hook of `json.dumps`."""
    if isinstance(value, datetime):
        return value.isoformat()
    found = plain(value)
    if found is value:
        raise TypeError(f"no JSON for {value!r}")
    return found
