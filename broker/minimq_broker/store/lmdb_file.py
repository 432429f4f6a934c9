"""Opening LMDB files so that a damaged one is an error that names it, and never the end of the process."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

import lmdb

from minimq_common.errors import StoreError

log = logging.getLogger(__name__)


def open_lmdb(path: Path, *, map_bytes: int, readonly: bool, tables: int = 0) -> lmdb.Environment:
    """Open an LMDB file, or make it unless `readonly`.

    Args:
        path: the file.
        map_bytes: address space for it; the most that it can hold.
        readonly: only look at it, or at a copy of it: nothing is changed.
        tables: number of named tables.

    Raises:
        StoreError: LMDB cannot open it.
        lmdb.DiskError: the disk is full.
    """
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
        raise StoreError(f"{path} has {size} bytes of {pages}, which cannot be filled up: {error}") from error


def _open(path: Path, map_bytes: int, readonly: bool, tables: int) -> lmdb.Environment:
    try:
        return lmdb.open(
            str(path),
            subdir=False,
            max_dbs=tables,
            map_size=map_bytes,
            readonly=readonly,
            create=not readonly,
            lock=not readonly,
        )
    except lmdb.DiskError:
        raise
    except lmdb.Error as error:
        raise StoreError(f"{path} cannot be opened: {error}: restore the data directory from a copy of it") from None
