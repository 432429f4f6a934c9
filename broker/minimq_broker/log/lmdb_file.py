"""Opens LMDB files so that a damaged one raises an error that names it, and never crashes the process."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import lmdb

from minimq_broker.log.disk import no_room
from minimq_broker.log.page_walk import LMDB_DAMAGE, PageDamage
from minimq_broker.log.page_walk import unreadable as unreadable_files
from minimq_broker.log.sealed_rows import RowDamage
from minimq_common.errors import CorruptEntry, StoreError
from minimq_common.files.synced_files import sync_directory

log = logging.getLogger(__name__)

_MAX_READERS = 120
#: Size of the lock file, enough for the table of `_MAX_READERS`.
_LOCK_BYTES = 8192
#: Tables that may be added to a file after its creation.
_MORE_TABLES = 2
#: Map size while a file is created.
_MAKING_BYTES = 1 << 20


class DamagedFile(StoreError):
    """An LMDB file that cannot be used because its content is damaged."""


#: Errors of reading a damaged LMDB file; not those of a full disk, too little memory and the like.
DAMAGE = (struct.error, CorruptEntry, DamagedFile, PageDamage, RowDamage, *LMDB_DAMAGE)


def open_lmdb(path: Path, *, map_bytes: int, readonly: bool, tables: Sequence[bytes] = ()) -> lmdb.Environment:
    """Open an LMDB file, whose pages are verified; create it unless `readonly`."""
    env = _open(path, map_bytes, readonly, tables)
    pages = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    size = path.stat().st_size
    if size >= pages:
        return env
    # A read beyond the end of the file would kill the process. An intact file may lack a few pages at its end that
    # nothing refers to. If others are missing, LMDB and the checksums detect it once these are filled with zeros.
    try:
        if not readonly:
            log.warning("store: filled up with zeros file=%s from=%d to=%d", path, size, pages)
            os.truncate(path, pages)
            return env
        env.close()
        with tempfile.TemporaryDirectory() as folder:  # the open file outlives its name
            copy = shutil.copyfile(path, Path(folder) / path.name)
            os.truncate(copy, pages)
            return _open(copy, map_bytes, readonly, tables)
    except OSError as error:
        env.close()
        kind = DamagedFile if error.errno in (errno.EFBIG, errno.EINVAL) else StoreError  # no file is that large
        raise kind(f"{path} has {size} bytes of {pages}, which cannot be filled up: {error}") from error


def require_sound(path: Path) -> None:
    """Verify the pages of an LMDB file that is not open, if it exists. Raises `DamagedFile`, `StoreError`."""
    if path.exists() and (error := unreadable_files([path]).get(path)):
        raise no_room(error, path.parent) or unusable(path, error)


def close_with(owner: object, env: lmdb.Environment, path: Path) -> None:
    """Close an LMDB file when its owner is garbage-collected. Its name may be reused at once."""
    # Keeps the inodes in use: LMDB rejects a new file with one of them as already open until this one is closed.
    inodes = [os.open(file, os.O_RDONLY | os.O_CLOEXEC) for file in lmdb_files(path)]
    weakref.finalize(owner, _close, env, inodes).atexit = False


def _close(env: lmdb.Environment, inodes: list[int]) -> None:
    env.close()
    for inode in inodes:
        os.close(inode)


def lmdb_files(path: Path) -> list[Path]:
    return [file for file in (path, lock_file(path)) if file.exists()]


def set_aside(path: Path) -> Path:
    """Rename a damaged file that is not open, and return the new name."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    aside = next(name for name in names if not name.exists())
    path.rename(aside)
    remove_lmdb(path)  # its lock file
    return aside


def remove_lmdb(path: Path) -> None:
    for file in lmdb_files(path):
        file.unlink()


def _open(path: Path, map_bytes: int, readonly: bool, tables: Sequence[bytes]) -> lmdb.Environment:
    is_new = not readonly and not path.exists()
    try:
        if is_new:
            _make_file(path, tables)
        if not readonly:
            _reserve(lock_file(path))
        return lmdb.open(
            str(path),
            subdir=False,
            max_dbs=len(tables) + _MORE_TABLES,
            map_size=map_bytes,
            max_readers=_MAX_READERS,
            readonly=readonly,
            create=not readonly,
            lock=not readonly,
        )
    except (OSError, lmdb.Error) as error:
        if is_new:  # an incomplete file could not be opened the next time
            remove_lmdb(path)
        raise (no_room(error, path.parent) or unusable(path, error)) from None


def _make_file(path: Path, tables: Iterable[bytes]) -> None:
    """Create an LMDB file with named tables, synced. If interrupted, the file exists completely or not at all."""
    made = path.with_name(f"{path.name}.new")
    try:
        made.unlink(missing_ok=True)
        names = list(tables)
        with closing(lmdb.open(str(made), subdir=False, map_size=_MAKING_BYTES, max_dbs=len(names), lock=False)) as env:
            with env.begin(write=True) as transaction:
                for name in names:
                    env.open_db(name, transaction)
            env.sync(force=True)
        made.rename(path)
        sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            made.unlink(missing_ok=True)
        raise


def unusable(path: Path, error: Exception) -> StoreError:
    """Return the error for an LMDB file that cannot be opened; only damage needs a copy."""
    if isinstance(error, DAMAGE):
        return DamagedFile(f"{path} is damaged: {error}: restore the data directory from a copy of it")
    return StoreError(f"{path} cannot be opened: {error}")


def unreadable(error: Exception) -> StoreError | None:
    """Translate an error of LMDB, or of decoding what it returned, for callers; None for any other error."""
    if not isinstance(error, lmdb.Error | struct.error):
        return None
    return CorruptEntry(f"the store of this broker cannot be read ({error}): stop it and run minimq-broker check")


def lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name}-lock")


def _reserve(lock: Path) -> None:
    file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(file, 0, max(os.fstat(file).st_size, _LOCK_BYTES))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # the file system cannot reserve space
            raise
    finally:
        os.close(file)
