"""Opening LMDB files so that a damaged one is an error that names it, and never the end of the process."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import lmdb

from minimq_common.errors import StoreError

log = logging.getLogger(__name__)


def open_lmdb(path: Path, *, map_bytes: int, readonly: bool, tables: int = 0) -> lmdb.Environment:
    """Open an LMDB file, or make it unless `readonly`.

    Args:
        path: the file.
        map_bytes: address space for it; the most that it can hold.
        readonly: only look at it.
        tables: number of named tables.

    Raises:
        StoreError: LMDB cannot open it.
        lmdb.DiskError: the disk is full.
    """
    try:
        env = lmdb.open(
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
    _fill_up(env, path)
    return env


def _fill_up(env: lmdb.Environment, path: Path) -> None:
    """Append zeros to a file that is shorter than its pages, for a read beyond its end would kill the process.

    A few pages that nothing refers to may be missing in a file that is in order. When others are missing, LMDB and the
    checksums tell, now that they can be read.
    """
    pages = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    size = path.stat().st_size
    if size < pages:
        log.warning("store: filled up with zeros file=%s from=%d to=%d", path, size, pages)
        os.truncate(path, pages)
