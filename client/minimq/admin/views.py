"""Tables, plans and results, in the form that the CLI, the console and its JSON API show."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from minimq_common.model import MessageQueue, OfflineBroker, Permission, permission_name

#: A row of a table: values by their keys in JSON.
Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Table:
    #: Printed instead of a table without rows: "no topics".
    empty: str
    headings: Mapping[str, str]


def columns(keys: str, /, **headings: str) -> Mapping[str, str]:
    """Return headings by key, from space-separated keys: by default "read_queues" is headed "Read queues"."""
    return {key: headings.get(key, key.replace("_", " ").capitalize()) for key in keys.split()}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows under a table's headings; the columns in `without` are left out."""

    table: Table
    rows: Sequence[Mapping[str, object]]
    without: frozenset[str] = frozenset()


def filled(table: Table, rows: Sequence[Row], *optional: str) -> Rows:
    """Return rows without the optional columns that have no value in any row."""
    return Rows(table, rows, frozenset(key for key in optional if not any(row[key] for row in rows)))


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One thing that an operation changes: a row of its plan, and of the report once it is done."""

    #: Such as "read queues of orders on broker-a".
    what: str
    #: The value before the change, and after it; None if there is none. Equal values: it stays as it is.
    now: int | str | None = None
    then: int | str | None = None
    #: A consequence, or the reason why it stays.
    note: str = ""

    def __str__(self) -> str:
        now, then = ("-" if each is None else each for each in (self.now, self.then))
        return f"{self.what}: {now} -> {then}" + (f" ({self.note})" if self.note else "")


_PLAN = Table("nothing changes", columns("what now then note"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The effect of an operation."""

    rows: Sequence[PlanRow] = ()
    #: No data is lost or exposed, so no confirmation is needed.
    is_harmless: bool = False
    #: False if a part cannot be changed or examined; commands then exit with status 1.
    is_complete: bool = True

    def view(self, rows: Sequence[PlanRow] | None = None, *, to: str = "") -> View:
        """Return the plan as a result, with `rows` in place of its own."""
        found = [row_of(each) for each in (self.rows if rows is None else rows)]
        return View(json=found, lines=[Rows(_PLAN, found)], is_complete=self.is_complete, to=to)


def offline_plan_rows(what: str, offline: Iterable[OfflineBroker], note: str) -> list[PlanRow]:
    """Return a row for each broker that is offline, with the consequence, such as "not changed"."""
    from minimq.connection.offline_brokers import state_of  # protobuf takes longer to load than --help

    return [PlanRow(f"{what} on {each.broker_name}", note=f"{state_of(each)}: {note}") for each in offline]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The result of an operation, as JSON and as text."""

    #: `--output jsonl` prints each item of a list on a line.
    json: object
    lines: Sequence[str | Rows] = ()
    #: Printed on stderr.
    notes: Sequence[str] = ()
    #: False makes the command exit with status 1 although it did not fail.
    is_complete: bool = True
    #: URL path of the page that shows the effect; by default that of the form.
    to: str = ""


#: The keys in rows of fields whose name differs.
_NAMES = {
    "broker_name": "broker",
    "broker_id": "id",
    "queue_id": "queue",
    "is_published": "published",
    "replica_id": "replica",
}


def row_of(item: Any, *properties: str, keep: Sequence[str] = (), **changes: object) -> dict[str, Any]:
    """Return the row of a dataclass: fields and `properties`; a queue becomes topic, broker and queue."""
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
    return _NAMES.get(name, name)


def plain(value: Any) -> Any:
    """Convert a value to the types that rows contain."""
    if type(value) in _AS_IT_IS:
        return value
    for kind, convert in _CONVERT:
        if isinstance(value, kind):
            return convert(value)
    return row_of(value) if dataclasses.is_dataclass(value) else value


_AS_IT_IS = frozenset({type(None), bool, int, float, str, datetime})
_CONVERT: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    (Permission, permission_name),
    (OfflineBroker, lambda offline: row_of(offline, keep=("broker_name", "since", "stopped", "queues"))),
    (MessageQueue, str),
    (Enum, lambda value: value.value),
    (bytes, lambda value: value.decode(errors="replace")),
    (Mapping, lambda values: {str(name): plain(each) for name, each in values.items()}),
    ((tuple, list, set, frozenset), lambda values: [plain(each) for each in values]),
)


def offline_rows(offline: Iterable[OfflineBroker]) -> list[dict[str, Any]]:
    """Return a row for each broker that is offline, with its number of queues."""
    return [plain(each) for each in offline]


def json_text(value: object) -> object:
    """Convert a value that JSON has no type for; the `default` hook of `json.dumps`."""
    if isinstance(value, datetime):
        return value.isoformat()
    found = plain(value)
    if found is value:
        raise TypeError(f"no JSON for {value!r}")
    return found
