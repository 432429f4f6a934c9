"""The LMDB file of a segment: its tables, the mark of a rewriting, and the verification of its pages.

LMDB trusts the pages of a file: damage can crash the process or hide rows. So the broker verifies all pages in the
background after a start. A read before that verifies the segment first, unless this would take too long.
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
#: The log position at which a rewritten segment ends, as its last entries may be missing.
_MARK_TABLE, _MARK_KEY, _MARK = b"rewritten", b"end", struct.Struct(">Q")
#: Size of the memory map beyond the size at which a segment is sealed; address space, not memory or disk.
_MAP_SLACK_BYTES = 512 << 20
#: A read verifies a segment of at most this many tree pages, in 25 to 110 ms: for example 1 GiB of batches of 24 KiB.
_MAX_PAGES_ON_READ = 1500


class SegmentFile:
    """The open file of a segment; see `Segment`."""

    def __init__(self, path: Path, start: int, segment_bytes: int, *, readonly: bool, verified: bool) -> None:
        self.path = path
        self.start = start
        size = path.stat().st_size if path.exists() else 0
        tables = (LOG_TABLE, _ROW_TABLE, DUE_TABLE)
        map_bytes = max(segment_bytes, size) + _MAP_SLACK_BYTES
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
        #: Only for sealed segments.
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
        """Mark the segment as rewritten and ending at a log position, and sync."""
        table = self._env.open_db(_MARK_TABLE)
        with self._env.begin(table, write=True) as txn:
            txn.put(_MARK_KEY, seal(_MARK_KEY, _MARK.pack(end)))
        self.rewritten_to = end

    def close(self) -> None:
        """Close the file. There must be no readers."""
        self._env.close()

    def remove_file(self) -> None:
        """Unlink the file. It can be read until this object is garbage-collected."""
        self.let_go()
        remove_lmdb(self.path)

    def let_go(self) -> None:
        """Close the file when this object is garbage-collected. Its name may be reused at once."""
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
        """Numbers of entries, index rows and due rows."""
        with self._reading() as txn:
            return txn.stat(self._log)["entries"], txn.stat(self._rows)["entries"], self.due.count(txn)

    @property
    def used_bytes(self) -> int:
        """Bytes of the file that hold data."""
        return int(self._env.info()["last_pgno"] + 1) * self._page_bytes


class PageCheck:
    """Verifies the pages of one file, which must not be written meanwhile. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.is_over = True
        self._path = path
        self._damage = ""

    def look(self, pages: int) -> None:
        """Verify all tree pages if there are few. Raises `CorruptEntry` if damage was found now or before."""
        if self._damage:
            raise CorruptEntry(self._damage)
        if pages <= _MAX_PAGES_ON_READ:
            for _ in self.walk():
                pass

    def walk(self, *, deep: bool = False) -> Iterator[None]:
        """Verify all pages, one small step per iteration. Raises `CorruptEntry` on damage."""
        with suppress(FileNotFoundError):  # it was removed, and its remaining readers finish
            try:
                yield from walk_file(self._path, deep=deep)
            except PageDamage as error:
                self._damage = f"{self._path.name} is damaged: {error}"
                raise CorruptEntry(self._damage) from None
        self.is_over = True


def mark_in(path: Path) -> int:
    """Return the end in the mark of a damaged rewritten segment; 0 if it has no readable mark."""
    with suppress(PageDamage, RowDamage, struct.error):
        for key, stored in rows_in(path, _MARK_TABLE):
            if key == _MARK_KEY:
                return _marked_end(stored)
    return 0


def _marked_end(stored: bytes) -> int:
    return int(_MARK.unpack(unseal(_MARK_KEY, stored))[0])


def is_segment(path: Path) -> bool:
    """Return whether a file has the name of a segment."""
    return re.fullmatch(r"[0-9]{20}\.mdb", path.name) is not None


def segment_files(path: Path, without: Collection[str] = ()) -> list[Path]:
    """Return the segment files in order, except those in `without`. Raises `StoreError` for a misnamed file."""
    files = sorted(file for file in path.glob("*.mdb") if file.name not in without)
    for file in files:
        if not is_segment(file):
            raise StoreError(
                f"{file} is not named like a segment, whose name is a log position of 20 digits: move it away"
            )
    return files
