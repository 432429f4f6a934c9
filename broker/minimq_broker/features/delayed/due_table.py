"""The due table of a segment: its delayed batches by due time, and the recalls that it holds.

    due     (due time, id of the batch, kind of row) -> `DueRow`

Rows are written in one transaction with their entries. They stay after the publication: the mark of the state separates
published from waiting batches. Rows have no checksum: what a batch is follows from its entry, which has one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakMethod

import lmdb

from minimq_broker.features.delayed.table import NO_KEY, BatchDelayed, BatchesRecalled
from minimq_broker.state.queue_ends import HeldKey
from minimq_broker.state.state import Effect

DUE_TABLE = b"due"

#: Due time and id of the batch, kind of row. A recall sorts before its batch.
_KEY = struct.Struct(">QQB")
_RECALL, _WAIT, _BEHIND = 0, 1, 0xFF
#: Topic id and number of messages of a batch, needed if its entry is damaged.
_WAITING = struct.Struct("<QI")
#: Log position of a recall.
_RECALLED = struct.Struct("<Q")
_MAX = (1 << 64) - 1


class DueRow(NamedTuple):
    """A stored row, of a delayed batch or of its recall."""

    key: bytes
    value: bytes

    @property
    def due(self) -> HeldKey:
        """The key of the batch. Raises `struct.error` if it is malformed."""
        return HeldKey(*_KEY.unpack(self.key)[:2])

    @property
    def is_recall(self) -> bool:
        return self.key[-1] == _RECALL

    @property
    def position(self) -> int:
        """Log position of its entry."""
        return int(_RECALLED.unpack_from(self.value)[0]) if self.is_recall else self.due.position

    @property
    def counted(self) -> tuple[int, int]:
        """Topic id and number of messages of a batch, unverified; zeros if the row is malformed."""
        return _WAITING.unpack(self.value) if len(self.value) == _WAITING.size else (0, 0)


def due_rows_of(effect: Effect, position: int) -> Iterator[DueRow]:
    """Yield the due rows of the entry with this effect and log position."""
    if isinstance(effect, BatchDelayed):
        yield DueRow(_KEY.pack(*effect.key, _WAIT), _WAITING.pack(effect.place.topic_id, effect.messages))
    elif isinstance(effect, BatchesRecalled):
        for each in effect.batches:
            yield DueRow(_KEY.pack(each.due_ms, each.id, _RECALL), _RECALLED.pack(position))


def key_after(key: HeldKey) -> bytes:
    """Return the database key at which the rows after a key begin."""
    return _KEY.pack(*key, _BEHIND)


def key_from(due_ms: int) -> bytes:
    """Return the database key at which the rows due at or after a time (ms since 1970) begin."""
    return _KEY.pack(min(due_ms, _MAX), 0, 0)


class _Next(NamedTuple):
    """Cached result of `DueTable.next_key`, valid while the table has this number of changes."""

    changes: int
    mark: HeldKey
    key: HeldKey | None


class DueTable:
    """The due table of one segment. One thread writes; any thread reads."""

    def __init__(self, table: Any, reading: Callable[[], Any]) -> None:
        self._db = table
        self._method = WeakMethod(reading)  # weak: the file is closed once the segment has no references
        self._changes = 0
        self._next = _Next(-1, NO_KEY, None)

    def _reading(self) -> Any:
        begin = self._method()
        assert begin is not None  # readers hold a reference to the segment
        return begin()

    def count(self, txn: lmdb.Transaction) -> int:
        return int(txn.stat(self._db)["entries"])

    # ---- writes -------------------------------------------------------------------------------------

    def put(self, txn: lmdb.Transaction, rows: Sequence[DueRow]) -> None:
        """Add rows. Call `changed` after the commit."""
        with txn.cursor(self._db) as cursor:
            cursor.putmulti([(row.key, row.value) for row in rows])

    def truncate(self, txn: lmdb.Transaction, position: int) -> None:
        """Delete the rows of all entries from a log position on. Call `changed` after the commit."""
        with txn.cursor(self._db) as cursor:
            gone = [bytes(key) for key, value in cursor if DueRow(bytes(key), bytes(value)).position >= position]
        for key in gone:
            txn.delete(key, db=self._db)

    def changed(self) -> None:
        """Invalidate the cache: rows were changed and committed."""
        self._changes += 1

    # ---- reads --------------------------------------------------------------------------------------

    def rows(self, start: bytes = b"\0") -> Iterator[DueRow]:
        """Yield the rows from a database key on."""
        with self._reading() as txn, txn.cursor(self._db) as cursor:
            if cursor.set_range(start):
                for key, value in cursor:
                    yield DueRow(bytes(key), bytes(value))

    def next_key(self, mark: HeldKey) -> HeldKey | None:
        """Return the first key after a mark, of a batch or a recall; None if there is none."""
        found = self._next
        if found.changes == self._changes and found.mark <= mark and (found.key is None or found.key > mark):
            return found.key
        changes = self._changes  # before the lookup, so that a write in between invalidates the result
        first = next(self.rows(key_after(mark)), None)
        key = None if first is None else first.due
        self._next = _Next(changes, mark, key)
        return key

    def has(self, row: DueRow) -> bool:
        return self._get(row.key) == row

    def recall_of(self, key: HeldKey) -> DueRow | None:
        """Return the recall of a batch, None if this segment has none."""
        return self._get(_KEY.pack(*key, _RECALL))

    def _get(self, key: bytes) -> DueRow | None:
        with self._reading() as txn:
            value = txn.get(key, db=self._db)
            return None if value is None else DueRow(key, bytes(value))
