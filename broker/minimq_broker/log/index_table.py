"""A feature's table in a segment: index rows, which are written, cut and copied with their entries.

    NAME    key of the feature -> log position of the entry, and what else the feature stores

The first row in a segment makes the table. Rows have no checksum: what they find follows from their entries, which have
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakMethod

import lmdb

from minimq_broker.features.feature import IndexRow

_POSITION_BYTES = 8


class _Next(NamedTuple):
    """Cached result of `IndexTable.next_key`, valid while the table has this number of changes."""

    changes: int
    start: bytes
    key: bytes | None


class IndexTable:
    """The index rows of one feature in one segment. One thread writes; any thread reads."""

    def __init__(self, name: str, env: lmdb.Environment, reading: Callable[[], Any]) -> None:
        self._table, self._name, self._env = name, name.encode(), env
        self._method = WeakMethod(reading)  # weak: the file is closed once the segment has no references
        #: The table of LMDB, None before it has rows.
        self._db = self._existing()
        self._changes = 0
        self._next = _Next(-1, b"", None)

    def _existing(self) -> Any:
        with suppress(lmdb.NotFoundError):
            return self._env.open_db(self._name, create=False)
        return None

    def _reading(self) -> Any:
        begin = self._method()
        assert begin is not None  # readers hold a reference to the segment
        return begin()

    # ---- writes -------------------------------------------------------------------------------------

    def put(self, txn: lmdb.Transaction, row: IndexRow) -> None:
        """Add a row. Call `changed` after the commit."""
        table = self._env.open_db(self._name, txn) if self._db is None else self._db
        txn.put(*row.stored, db=table)

    def truncate(self, txn: lmdb.Transaction, position: int) -> None:
        """Delete the rows of all entries from a log position on. Call `changed` after the commit."""
        if self._db is not None:
            with txn.cursor(self._db) as cursor:
                gone = [bytes(key) for key, value in cursor if _position_in(value) >= position]
            for key in gone:
                txn.delete(key, db=self._db)

    def changed(self) -> None:
        """Show committed changes to readers."""
        if self._db is None:
            self._db = self._existing()
        self._changes += 1

    # ---- reads --------------------------------------------------------------------------------------

    def rows(self, start: bytes = b"\0") -> Iterator[IndexRow]:
        """Yield the rows from a key on."""
        if (db := self._db) is None:  # before the transaction, which does not see a later table
            return
        with self._reading() as txn, txn.cursor(db) as cursor:
            if cursor.set_range(start):
                for key, value in cursor:
                    yield self._row(bytes(key), value)

    def next_key(self, start: bytes) -> bytes | None:
        """Return the first key from `start` on, None if there is none. Fast for starts that ascend."""
        known = self._next
        if known.changes == self._changes and known.start <= start and (known.key is None or known.key >= start):
            return known.key
        changes = self._changes  # before the lookup, so that a write in between invalidates the result
        first = next(self.rows(start), None)
        key = None if first is None else first.key
        self._next = _Next(changes, start, key)
        return key

    def get(self, key: bytes) -> IndexRow | None:
        row = next(self.rows(key), None)
        return row if row is not None and row.key == key else None

    def _row(self, key: bytes, value: bytes | memoryview) -> IndexRow:
        return IndexRow(self._table, key, _position_in(value), bytes(value[_POSITION_BYTES:]))


def _position_in(value: bytes | memoryview) -> int:
    return int.from_bytes(value[:_POSITION_BYTES], "big")  # of a damaged row: any number
