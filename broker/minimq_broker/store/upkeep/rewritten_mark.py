"""The mark of a rewritten segment, in a table of its own: entries may be missing, and where it ends."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import lmdb

from minimq_common.files.lmdb_files import rows_in
from minimq_common.files.lmdb_pages import PageDamage
from minimq_common.files.sealed_rows import RowDamage, seal, unseal

_TABLE = b"rewritten"
_KEY = b"end"
_POSITION = struct.Struct(">Q")


def read_mark(env: lmdb.Environment) -> int:
    """Return the log position at which a segment ends by its mark; 0 without one. Raises `lmdb.CorruptedError`."""
    try:
        table = env.open_db(_TABLE, create=False)
    except lmdb.NotFoundError:
        return 0
    with env.begin(table) as txn:
        try:
            return _end_in(bytes(txn.get(_KEY, b"")))
        except (RowDamage, struct.error) as error:
            raise lmdb.CorruptedError(f"the mark of a rewritten segment is damaged: {error}") from None


def put_mark(env: lmdb.Environment, end: int) -> None:
    """Mark a segment, synced."""
    table = env.open_db(_TABLE)
    with env.begin(table, write=True) as txn:
        txn.put(_KEY, seal(_KEY, _POSITION.pack(end)))


def mark_in(path: Path) -> int:
    """Return the same of a damaged file; 0 when it has no mark that can be read."""
    with suppress(PageDamage, RowDamage, struct.error):
        for key, stored in rows_in(path, _TABLE):
            if key == _KEY:
                return _end_in(stored)
    return 0


def _end_in(stored: bytes) -> int:
    return int(_POSITION.unpack(unseal(_KEY, stored))[0])
