"""Opening LMDB files so that a damaged one is an error that names it, and never the end of the process."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import lmdb

from minimq_broker.store.disk import is_full
from minimq_common.errors import CorruptEntry, StoreError, StoreFull
from minimq_common.files.lmdb_pages import PageDamage, check_file, make_file
from minimq_common.files.sealed_rows import RowDamage

log = logging.getLogger(__name__)

#: Transactions that may read one file at the same time.
_READERS = 120
#: Of a lock file: the table of so many readers fits in.
_LOCK_BYTES = 8192
#: Tables that a file may get beyond those that it is made with.
_MORE_TABLES = 2


class DamagedFile(StoreError):
    """An LMDB file that cannot be opened for what is in it."""


class DamagedPages(DamagedFile):
    """An LMDB file with damaged pages."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}: restore the data directory from a copy of it")
        self.reason = reason


#: What reading a damaged LMDB file raises, as against what a full disk, a lack of memory and the like do.
DAMAGE = (
    struct.error,
    CorruptEntry,
    DamagedFile,
    PageDamage,
    RowDamage,
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)


def open_lmdb(
    path: Path, *, map_bytes: int, readonly: bool, tables: Sequence[bytes] = (), verified: bool = False
) -> lmdb.Environment:
    """Open an LMDB file whose pages are in order, or make it unless `readonly`."""
    if path.exists() and not verified:
        check_pages_of(path)
    env = _open(path, map_bytes, readonly, tables)
    pages = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    size = path.stat().st_size
    if size >= pages:
        return env
    # A read beyond the end of the file would kill the process. A few pages that nothing refers to may be missing in a
    # file that is in order. When others are missing, LMDB and the checksums tell, once there are zeros to be read.
    try:
        if not readonly:
            log.warning("store: filled up with zeros file=%s from=%d to=%d", path, size, pages)
            os.truncate(path, pages)
            return env
        env.close()
        with tempfile.TemporaryDirectory() as folder:  # its file lives on, without a name, until it is closed
            copy = shutil.copyfile(path, Path(folder) / path.name)
            os.truncate(copy, pages)
            return _open(copy, map_bytes, readonly, tables)
    except OSError as error:
        env.close()
        kind = DamagedFile if error.errno in (errno.EFBIG, errno.EINVAL) else StoreError  # no file is that large
        raise kind(f"{path} has {size} bytes of {pages}, which cannot be filled up: {error}") from error


def check_pages_of(path: Path) -> None:
    """Verify the pages of an LMDB file that nobody has open. Raises `DamagedFile`, `StoreError`."""
    try:
        check_file(path)
    except PageDamage as error:
        raise DamagedPages(path, str(error)) from None
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error}") from None


def close_with(owner: object, env: lmdb.Environment, path: Path) -> None:
    """Close an LMDB file once nobody has the owner of it any more; its name is free for another file at once."""
    # Another file that gets one of their inodes is refused as open, until LMDB has forgotten this one.
    inodes = [os.open(file, os.O_RDONLY | os.O_CLOEXEC) for file in lmdb_files(path)]
    weakref.finalize(owner, _close, env, inodes).atexit = False


def _close(env: lmdb.Environment, inodes: list[int]) -> None:
    env.close()
    for inode in inodes:
        os.close(inode)


def lmdb_files(path: Path) -> list[Path]:
    """Return those of an LMDB file and its lock file that are there."""
    return [file for file in (path, lock_file(path)) if file.exists()]


def free_name(path: Path) -> Path:
    """Return a name for a damaged file that is set aside."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    return next(name for name in names if not name.exists())


def set_aside(path: Path) -> Path:
    """Give a damaged file that nobody has open another name, and return that."""
    aside = free_name(path)
    path.rename(aside)
    remove_lmdb(path)  # its lock file
    return aside


def remove_lmdb(path: Path) -> None:
    """Delete an LMDB file and its lock file, as far as they are there."""
    for file in lmdb_files(path):
        file.unlink()


def _open(path: Path, map_bytes: int, readonly: bool, tables: Sequence[bytes]) -> lmdb.Environment:
    is_new = not readonly and not path.exists()
    try:
        if is_new:
            make_file(path, tables)
        if not readonly:
            _reserve(lock_file(path))
        return lmdb.open(
            str(path),
            subdir=False,
            max_dbs=len(tables) + _MORE_TABLES,
            map_size=map_bytes,
            max_readers=_READERS,
            readonly=readonly,
            create=not readonly,
            lock=not readonly,
        )
    except (OSError, lmdb.Error) as error:
        if is_new:  # the half of a file could not be opened the next time
            remove_lmdb(path)
        if not readonly and is_full(error, path.parent):
            raise StoreFull(f"no space is left on the disk for {path} ({error}): free some") from None
        if isinstance(error, lmdb.MemoryError):
            raise StoreError(f"{path} cannot be opened: {map_bytes} bytes of address space are not available") from None
        if isinstance(error, OSError):
            raise StoreError(f"{path} cannot be opened: {error}") from None
        kind = DamagedFile if isinstance(error, DAMAGE) else StoreError
        raise kind(f"{path} cannot be opened: {error}: restore the data directory from a copy of it") from None


def unreadable(error: Exception) -> StoreError | None:
    """Return what an error of LMDB, or of decoding what it returned, means to a caller; None for any other."""
    if not isinstance(error, lmdb.Error | struct.error):
        return None
    return CorruptEntry(f"the store of this broker cannot be read ({error}): stop it and run minimq-broker check")


def lock_file(path: Path) -> Path:
    """Return where the lock file of an LMDB file is."""
    return path.with_name(f"{path.name}-lock")


def _reserve(lock: Path) -> None:
    file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(file, 0, max(os.fstat(file).st_size, _LOCK_BYTES))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # the file system reserves nothing
            raise
    finally:
        os.close(file)
