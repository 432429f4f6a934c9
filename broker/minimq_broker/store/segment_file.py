"""The file of a segment: opened, looked at, closed and removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minimq_broker.store.held.due_table import DueTable
from minimq_broker.store.lmdb_file import close_with, remove_lmdb
from minimq_broker.store.segment_tables import open_segment
from minimq_broker.store.upkeep.page_check import PageCheck
from minimq_broker.store.upkeep.rewritten_mark import put_mark


class SegmentFile:
    """The open file of a segment; see `Segment`."""

    def __init__(self, path: Path, start: int, segment_bytes: int, *, readonly: bool, verified: bool) -> None:
        self.path = path
        self.start = start
        tables = open_segment(path, segment_bytes, readonly=readonly, verified=verified)
        self._env, self._log, self._rows, _, self.rewritten_to = tables
        self.due = DueTable(self._env, tables.due, self._reading)
        self._page_bytes = self._env.stat()["psize"]
        #: Of what is written to nothing is looked at.
        self.pages = PageCheck(path)

    def mark_rewritten(self, end: int) -> None:
        """Mark it as rewritten, and where it ends; synced."""
        put_mark(self._env, end)
        self.rewritten_to = end

    def close(self) -> None:
        """Close the file. Nothing may be read afterwards."""
        self._env.close()

    def remove_file(self) -> None:
        """Take the file its name; what it holds can be read until this object is gone."""
        self.let_go()
        remove_lmdb(self.path)

    def let_go(self) -> None:
        """Close the file once nobody has this object any more; its name is free for another file."""
        close_with(self, self._env, self.path)

    def _reading(self, table: Any = None, *, buffers: bool = True) -> Any:
        if not self.pages.is_over:
            with self._env.begin() as txn:
                stats = [txn.stat(self._log), txn.stat(self._rows)]
                pages = self.due.pages(txn)
            self.pages.look(pages + sum(stat["branch_pages"] + stat["leaf_pages"] for stat in stats))
        begin: Any = self._env.begin
        return begin(table, buffers=buffers)

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of its entries, of its rows, and of those of the due table."""
        with self._reading() as txn:
            return txn.stat(self._log)["entries"], txn.stat(self._rows)["entries"], self.due.count(txn)

    @property
    def used_bytes(self) -> int:
        """Bytes of the file that hold data."""
        return int(self._env.info()["last_pgno"] + 1) * self._page_bytes
