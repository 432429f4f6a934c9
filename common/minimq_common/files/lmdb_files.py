"""LMDB files, made whole and verified before they are opened: LMDB takes one that is cut off for a new one."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import lmdb

from minimq_common.files.lmdb_pages import PageDamage, rows_said, sound_rows, walk_pages

#: Address space for a file in the making.
_MAKING_BYTES = 1 << 20


def check_file(path: Path, *, deep: bool = False) -> None:
    """Verify the pages of an LMDB file that nobody has open, see `check_pages`. Raises `PageDamage`, `OSError`."""
    for _ in walk_file(path, deep=deep):
        pass


def walk_file(path: Path, *, deep: bool = False) -> Iterator[None]:
    """Verify the pages of an LMDB file as `check_file` does, in small steps."""
    with _mapped(path) as data:
        yield from walk_pages(data, deep=deep)


def rows_in(path: Path, table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield what can be read of a table of a damaged file, see `sound_rows`. Raises `PageDamage`, `OSError`."""
    with _mapped(path) as data:
        yield from sound_rows(data, table)


def rows_said_in(path: Path, table: bytes) -> int:
    """Return how many rows a table of a damaged file says that it has. Raises `PageDamage`, `OSError`."""
    with _mapped(path) as data:
        return rows_said(data, table)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise PageDamage("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def make_file(path: Path, tables: Iterable[bytes] = ()) -> None:
    """Make an LMDB file with named tables, synced.

    Whatever interrupts it, the file is there as a whole or not at all.
    """
    made = path.with_name(f"{path.name}.new")
    try:
        made.unlink(missing_ok=True)
        names = list(tables)
        env = lmdb.open(str(made), subdir=False, map_size=_MAKING_BYTES, max_dbs=len(names), lock=False)
        try:
            with env.begin(write=True) as transaction:
                for name in names:
                    env.open_db(name, transaction)
            env.sync(force=True)
        finally:
            env.close()
        made.rename(path)
        _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            made.unlink(missing_ok=True)
        raise


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
