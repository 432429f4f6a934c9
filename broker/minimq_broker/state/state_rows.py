"""The rows of a state in a checkpoint: how each kind is read from a state and loaded into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from minimq_broker.groups.groups import GroupConfig
from minimq_broker.replication.term_history import TermStart
from minimq_broker.state.facts import Topic
from minimq_broker.state.producers import ProducerKey, ProducerState
from minimq_broker.state.state import QueueEnd, QueueKey, State
from minimq_common.errors import StoreError


def changed_rows(state: State) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the rows changed since `State.saved` and their values, None for a deleted row."""
    rows = [(row, _ROWS[row[0]].get(state, *row[1:])) for row in state.changed]
    for name, table in state.tables.items():
        rows += [((name, *key), table.row(key)) for key in table.changed]
    return rows


def load_row(state: State, row: Any, value: Any) -> None:
    """Load a row of a checkpoint, as `changed_rows` returned it."""
    kind, *key = row if isinstance(row, list | tuple) and row else [row]
    if not isinstance(kind, str) or (kind not in _ROWS and kind not in state.tables):
        raise StoreError(
            f"a row of kind {kind!r} is unknown here: open the directory with the newer release that wrote it"
        )
    try:
        if (table := state.tables.get(kind)) is not None:
            table.load(tuple(key), value)
        else:
            _ROWS[kind].set(state, value, *key)
    except (TypeError, ValueError, LookupError) as error:
        raise StoreError(f"a row of kind {kind!r} is malformed: {error}") from None


class _Row(NamedTuple):
    """Getter and setter of one kind of row. Both receive the parts of its key as the last arguments."""

    get: Callable[..., Any]
    set: Callable[..., None]


def _row_of(
    table: Callable[[State], dict[Any, Any]], key: Any, kind: Any, note: Callable[..., None] = lambda *_: None
) -> _Row:

    def put(state: State, value: Any, *parts: Any) -> None:
        found = parts[0] if key is str and len(parts) == 1 else parts
        table(state)[msgspec.convert(found, key)] = msgspec.convert(value, kind)
        note(state, *parts)

    def get(state: State, *parts: Any) -> Any:
        return table(state).get(parts[0] if key is str else parts)  # a plain tuple equals a named one

    return _Row(get, put)


def _row_of_attribute(name: str, kind: Any) -> _Row:
    def put(state: State, value: Any) -> None:
        setattr(state, name, msgspec.convert(value, kind))

    return _Row(lambda state: getattr(state, name), put)


def _note_row(state: State, *key: Any) -> None:
    state.index.add(*key)


def _producer_row(state: State, *key: Any) -> ProducerState | None:
    return state.producers.states.get((key[0], key[1], key[2]))


def _load_producer(state: State, row: Any, *key: Any) -> None:
    state.producers.load(msgspec.convert(key, ProducerKey), row)


#: Must have every kind of row that `State.apply` marks as changed.
_ROWS: dict[str, _Row] = {
    "end": _row_of(lambda state: state.ends, QueueKey, QueueEnd),
    "offset": _row_of(lambda state: state.committed, tuple[str, int, int], int, _note_row),
    "started": _row_of(lambda state: state.started, tuple[str, int], int, _note_row),
    "used": _row_of(lambda state: state.used, str, int),
    "published": _row_of(lambda state: state.published, str, bool),
    "agreement": _row_of(lambda state: state.agreements, str, GroupConfig),
    "topic": _row_of(lambda state: state.topics, str, Topic, lambda state, name: state.note_name(name)),
    "producer": _Row(_producer_row, _load_producer),
    "feature": _row_of(lambda state: state.features, str, int),
    "permission": _row_of_attribute("permission", int),
    "term": _row_of_attribute("term", int),
    "terms": _row_of_attribute("terms", list[TermStart]),
    "log-id": _row_of_attribute("log_id", str),
}
