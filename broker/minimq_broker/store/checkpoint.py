"""The checkpoint: the rows of the state and the log position up to which they hold, in an LMDB file of its own.

Recovery loads it and applies the entries that came later. Each save is synced: LMDB without sync can be damaged by a
power cut.
"""

from __future__ import annotations

from pathlib import Path

import lmdb
import msgspec

from minimq_broker.core.state import State

_POSITION_KEY = b"\0position"
#: Address space for the map; a row takes about 60 bytes.
_MAP_BYTES = 16 << 30


class Checkpoint:
    """The saved state of one broker. Used by one thread at a time."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._env = lmdb.open(
            str(path), subdir=False, map_size=_MAP_BYTES, readonly=readonly, lock=not readonly, create=not readonly
        )

    def close(self) -> None:
        """Close the file."""
        self._env.close()

    def load(self) -> State:
        """Return the saved state, or an empty one when nothing was saved yet."""
        state = State()
        with self._env.begin() as txn, txn.cursor() as cursor:
            for key, value in cursor:
                if key == _POSITION_KEY:
                    state.position = msgspec.msgpack.decode(value)
                else:
                    state.load(msgspec.msgpack.decode(key), msgspec.msgpack.decode(value))
        return state

    def save(self, state: State) -> None:
        """Save the rows that changed since the last save, and sync. On failure they stay marked as changed."""
        rows = state.changes()
        with self._env.begin(write=True) as txn:
            for row, value in rows:
                key = msgspec.msgpack.encode(row)
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, msgspec.msgpack.encode(value))
            txn.put(_POSITION_KEY, msgspec.msgpack.encode(state.position))
        state.saved()
