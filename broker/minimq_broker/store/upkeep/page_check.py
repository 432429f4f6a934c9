"""A check of the pages of a segment: LMDB trusts them, and some damage ends the process, or hides rows.

All of them are verified in the background after a start. An earlier read of a segment verifies it first, unless it has
so many pages that others would have to wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from minimq_common.errors import CorruptEntry
from minimq_common.files.lmdb_files import walk_file
from minimq_common.files.lmdb_pages import PageDamage

#: Number of tree pages that are verified at once, in 25 to 110 ms: those of 1 GiB of batches of 24 KiB, for one.
_FEW_PAGES = 1500


class PageCheck:
    """The check of one file, which is not written meanwhile. Any thread may call any method."""

    def __init__(self, path: Path) -> None:
        self.is_over = True
        self._path = path
        self._damage = ""

    def look(self, pages: int) -> None:
        """Look at all pages of trees if there are few. Raises `CorruptEntry` when something is wrong."""
        if self._damage:
            raise CorruptEntry(self._damage)
        if pages <= _FEW_PAGES:
            for _ in self.walk():
                pass

    def walk(self, *, deep: bool = False) -> Iterator[None]:
        """Look at all pages in small steps. Raises `CorruptEntry` when something is wrong."""
        with suppress(FileNotFoundError):  # it was removed, and who still reads it finishes
            try:
                yield from walk_file(self._path, deep=deep)
            except PageDamage as error:
                self._damage = f"{self._path.name} is damaged: {error}"
                raise CorruptEntry(self._damage) from None
        self.is_over = True
