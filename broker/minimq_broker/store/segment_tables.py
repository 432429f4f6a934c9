"""The tables of the file of a segment, opened or made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from minimq_broker.store.disk import is_full
from minimq_broker.store.held.due_table import DUE_TABLE, open_due
from minimq_broker.store.lmdb_file import DAMAGE, DamagedFile, open_lmdb
from minimq_broker.store.upkeep.rewritten_mark import read_mark
from minimq_common.errors import StoreError, StoreFull

LOG_TABLE = b"log"
_ROW_TABLE = b"consumequeue"
_TABLES = (LOG_TABLE, _ROW_TABLE, DUE_TABLE)

#: Room in the memory map beyond the size at which a segment is sealed; address space, not memory or disk.
_MAP_SLACK = 512 << 20


class SegmentTables(NamedTuple):
    """The open file of a segment."""

    env: lmdb.Environment
    log: Any
    rows: Any
    #: Its table of delayed batches; None in one of an older release.
    due: Any
    rewritten_to: int


def open_segment(path: Path, segment_bytes: int, *, readonly: bool, verified: bool) -> SegmentTables:
    """Open the file of a segment, or make it."""
    size = path.stat().st_size if path.exists() else 0
    map_bytes = max(segment_bytes, size) + _MAP_SLACK
    env = open_lmdb(path, map_bytes=map_bytes, readonly=readonly, tables=_TABLES, verified=verified)
    try:
        # All at once, so that no crash leaves one without the others. Nothing is written to a file that has them.
        if not readonly and not env.stat()["entries"]:
            with env.begin(write=True) as txn:
                for name in _TABLES:
                    env.open_db(name, txn)
        log, rows = (env.open_db(name, create=False) for name in (LOG_TABLE, _ROW_TABLE))
        return SegmentTables(env, log, rows, open_due(env), read_mark(env))
    except BaseException as error:
        env.close()
        if not readonly and is_full(error, path.parent):
            raise StoreFull(f"no space is left on the disk for {path} ({error}): free some") from None
        if isinstance(error, lmdb.Error):
            kind = DamagedFile if isinstance(error, DAMAGE) else StoreError
            raise kind(f"{path} is damaged: {error}: restore the data directory from a copy of it") from None
        raise
