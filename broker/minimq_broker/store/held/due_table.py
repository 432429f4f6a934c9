"""The due table of a segment: its delayed batches by when they are due, and the recalls in it.

    due     (due time, id of the batch, kind of row) -> `DueRow` or `RecallRow`

Rows are written in one transaction with their entries, and stay when the batch is published: the mark of the state
tells which are over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakMethod

import lmdb

from minimq_broker.core.held.delays import NO_KEY, DueKey
from minimq_broker.store.held.due_rows import (
    AnyDueRow,
    due_key_in,
    key_after,
    position_in_due,
    recall_key,
    wait_key,
)

DUE_TABLE = b"due"


class _Next(NamedTuple):
    """The first key behind a mark, as the table was after some changes."""

    changes: int
    mark: DueKey
    key: DueKey | None


class DueTable:
    """The due table of one segment. One thread writes; any thread reads."""

    def __init__(self, table: Any, reading: Callable[[], Any]) -> None:
        self._db = table
        self._method = WeakMethod(reading)  # the file is closed once nobody has the segment
        self._changes = 0
        self._next = _Next(-1, NO_KEY, None)

    def _reading(self) -> Any:
        begin = self._method()
        assert begin is not None  # whoever reads has the segment
        return begin()

    def count(self, txn: lmdb.Transaction) -> int:
        """Return the number of its rows."""
        return int(txn.stat(self._db)["entries"])

    def pages(self, txn: lmdb.Transaction) -> int:
        """Return the number of its pages."""
        stat = txn.stat(self._db)
        return int(stat["branch_pages"] + stat["leaf_pages"])

    # ---- writing ------------------------------------------------------------------------------------

    def put(self, txn: lmdb.Transaction, rows: Sequence[AnyDueRow]) -> None:
        """Add rows. `changed` follows the commit."""
        with txn.cursor(self._db) as cursor:
            cursor.putmulti([row.pack() for row in rows])

    def delete(self, txn: lmdb.Transaction, row: AnyDueRow) -> None:
        """Delete a row. `changed` follows the commit."""
        txn.delete(row.pack()[0], db=self._db)

    def truncate(self, txn: lmdb.Transaction, position: int) -> None:
        """Delete the rows of all entries from a log position on. `changed` follows the commit."""
        with txn.cursor(self._db) as cursor:
            gone = [key for key, value in cursor if position_in_due(key, value) >= position]
        for key in gone:
            txn.delete(key, db=self._db)

    def changed(self) -> None:
        """Forget what was found: rows were written, and committed."""
        self._changes += 1

    # ---- reading ------------------------------------------------------------------------------------

    def stored_from(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the key of each row and the row as stored, not verified, from a key on."""
        with self._reading() as txn, txn.cursor(self._db) as cursor:
            if cursor.set_range(start):
                for key, value in cursor:
                    yield bytes(key), bytes(value)

    def stored(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each row as `stored_from` does."""
        return self.stored_from(b"\0")

    def next_key(self, mark: DueKey) -> DueKey | None:
        """Return the first key behind a mark, of a batch that waits or of a recall; None when there is none."""
        found = self._next
        if found.changes == self._changes and found.mark <= mark and (found.key is None or found.key > mark):
            return found.key
        changes = self._changes  # ahead of looking: what is written in between is looked for the next time
        first = next(self.stored_from(key_after(mark)), None)
        key = None if first is None else due_key_in(first[0])
        self._next = _Next(changes, mark, key)
        return key

    def has(self, row: AnyDueRow) -> bool:
        """Return whether a row is stored as it should be."""
        key, value = row.pack()
        return self._get(key) == (key, value)

    def get(self, key: DueKey) -> tuple[bytes, bytes] | None:
        """Return key and row, as stored, of a batch; None when it has none here."""
        return self._get(wait_key(key))

    def get_recall(self, key: DueKey) -> tuple[bytes, bytes] | None:
        """Return key and row, as stored, of the recall of a batch; None when it has none here."""
        return self._get(recall_key(key))

    def _get(self, key: bytes) -> tuple[bytes, bytes] | None:
        with self._reading() as txn:
            value = txn.get(key, db=self._db)
            return None if value is None else (key, bytes(value))
