"""The LMDB file of a segment: its tables, the mark of a rewriting, and the check of its pages.

LMDB trusts the pages of a file, and some damage ends the process, or hides rows. So all pages are verified in the
background after a start. An earlier read of a segment verifies it first, unless it has so many pages that others would
have to wait.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb

from minimq_broker.store.held.due_table import DUE_TABLE, DueTable
from minimq_broker.store.lmdb_file import DAMAGE, DamagedFile, close_with, open_lmdb, remove_lmdb
from minimq_common.errors import CorruptEntry, StoreError
from minimq_common.files.lmdb_pages import PageDamage, rows_in, walk_file
from minimq_common.files.sealed_rows import RowDamage, seal, unseal

LOG_TABLE = b"log"
_ROW_TABLE = b"consumequeue"
#: Says of a rewritten segment, in which entries may be missing, at which log position it ends.
_MARK_TABLE, _MARK_KEY, _MARK = b"rewritten", b"end", struct.Struct(">Q")
#: Room in the memory map beyond the size at which a segment is sealed; address space, not memory or disk.
_MAP_SLACK = 512 << 20
#: Number of tree pages that are verified at once, in 25 to 110 ms: those of 1 GiB of batches of 24 KiB, for one.
_FEW_PAGES = 1500


class SegmentFile:
    """The open file of a segment; see `Segment`."""

    def __init__(self, path: Path, start: int, segment_bytes: int, *, readonly: bool, verified: bool) -> None:
        self.path = path
        self.start = start
        size = path.stat().st_size if path.exists() else 0
        tables = (LOG_TABLE, _ROW_TABLE, DUE_TABLE)
        map_bytes = max(segment_bytes, size) + _MAP_SLACK
        self._env = open_lmdb(path, map_bytes=map_bytes, readonly=readonly, tables=tables, verified=verified)
        try:
            self._log, self._rows, due = (self._env.open_db(name, create=False) for name in tables)
            self.due = DueTable(due, self._reading)
            self.rewritten_to = self._mark()
        except BaseException as error:
            self._env.close()
            if isinstance(error, lmdb.Error):
                kind = DamagedFile if isinstance(error, DAMAGE) else StoreError
                raise kind(f"{path} is damaged: {error}: restore the data directory from a copy of it") from None
            raise
        self._page_bytes = self._env.stat()["psize"]
        #: Of what is written to nothing is looked at.
        self.pages = PageCheck(path)

    def _mark(self) -> int:
        try:
            table = self._env.open_db(_MARK_TABLE, create=False)
            with self._env.begin(table) as txn:
                return _marked_end(bytes(txn.get(_MARK_KEY, b"")))
        except lmdb.NotFoundError:
            return 0
        except (RowDamage, struct.error) as error:
            raise lmdb.CorruptedError(f"the mark of a rewritten segment is damaged: {error}") from None

    def mark_rewritten(self, end: int) -> None:
        """Mark it as rewritten, and where it ends; synced."""
        table = self._env.open_db(_MARK_TABLE)
        with self._env.begin(table, write=True) as txn:
            txn.put(_MARK_KEY, seal(_MARK_KEY, _MARK.pack(end)))
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


class PageCheck:
    """The check of the pages of one file, which is not written meanwhile. Any thread may call any method."""

    def __init__(self, path: Path) -> None:
        self.is_over = True
        self._path = path
        self._damage = ""

    def look(self, pages: int) -> None:
        """Verify the pages of all trees if there are few. Raises `CorruptEntry` when something is wrong."""
        if self._damage:
            raise CorruptEntry(self._damage)
        if pages <= _FEW_PAGES:
            for _ in self.walk():
                pass

    def walk(self, *, deep: bool = False) -> Iterator[None]:
        """Verify all pages in small steps. Raises `CorruptEntry` when something is wrong."""
        with suppress(FileNotFoundError):  # it was removed, and who still reads it finishes
            try:
                yield from walk_file(self._path, deep=deep)
            except PageDamage as error:
                self._damage = f"{self._path.name} is damaged: {error}"
                raise CorruptEntry(self._damage) from None
        self.is_over = True


def mark_in(path: Path) -> int:
    """Return where a damaged file of a rewritten segment ends; 0 when it has no mark that can be read."""
    with suppress(PageDamage, RowDamage, struct.error):
        for key, stored in rows_in(path, _MARK_TABLE):
            if key == _MARK_KEY:
                return _marked_end(stored)
    return 0


def _marked_end(stored: bytes) -> int:
    return int(_MARK.unpack(unseal(_MARK_KEY, stored))[0])


def is_segment(path: Path) -> bool:
    """Return whether a file is named like a segment."""
    return re.fullmatch(r"[0-9]{20}\.mdb", path.name) is not None


def segment_files(path: Path, without: Collection[str] = ()) -> list[Path]:
    """Return the files of segments in order, without the excluded ones. Raises `StoreError` for a misnamed file."""
    files = sorted(file for file in path.glob("*.mdb") if file.name not in without)
    for file in files:
        if not is_segment(file):
            raise StoreError(
                f"{file} is not named like a segment, whose name is a log position of 20 digits: move it away"
            )
    return files
