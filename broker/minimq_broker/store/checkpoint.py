"""The checkpoint: the rows of the state and the log position up to which they hold, in an LMDB file of its own.

Recovery loads it and applies the entries that came later. Each save is synced: LMDB without sync can be damaged by a
power cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import lmdb
import msgspec

from minimq_broker.core.held.delays import NO_KEY, DueKey
from minimq_broker.core.popping.pop_queue import PopRow
from minimq_broker.core.state import State
from minimq_broker.core.state_rows import changed_rows, load_row
from minimq_broker.store.lmdb_file import DAMAGE, DamagedFile, open_lmdb
from minimq_common.errors import StoreError
from minimq_common.files.sealed_rows import SUM_KEY, RowDamage, change, seal, unseal, unsealed

POSITION_KEY = b"\0position"
#: No log is as long; what follows such a position fits into the 64 bits of a stored number.
_MAX_POSITION = 1 << 62
_Position = Annotated[int, msgspec.Meta(ge=0, le=_MAX_POSITION)]
#: Address space for the map; a row takes about 60 bytes.
_MAP_BYTES = 16 << 30


class DamagedCheckpoint(DamagedFile):
    """The checkpoint is damaged. As long as the log begins at position 0, another one follows from that."""


class Snapshot(NamedTuple):
    """A saved state: what the entries of the log up to a position lead to."""

    position: int
    rows: list[tuple[bytes, bytes]]


class ChangedRows(NamedTuple):
    """Rows of a state that a checkpoint lacks, as stored, None for one that is gone, with its log position and mark."""

    position: int
    rows: list[tuple[bytes, bytes | None]]
    mark: DueKey = NO_KEY


def take_changes(state: State) -> ChangedRows:
    """Return what has changed in a state since the last call; it has to be saved, or the state made anew."""
    rows = []
    for row, value in changed_rows(state):
        key = msgspec.msgpack.encode(row)
        rows.append((key, None if value is None else seal(key, msgspec.msgpack.encode(value))))
    state.saved()
    return ChangedRows(state.position, rows, state.delays.mark)


class Checkpoint:
    """The saved state of one broker. Used by one thread at a time."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._path = path
        try:
            self._env = open_lmdb(path, map_bytes=_MAP_BYTES, readonly=readonly)
        except DamagedFile as error:
            raise DamagedCheckpoint(error.message) from None
        #: Log position up to which the state is saved, once it is loaded.
        self.position = 0

    def close(self) -> None:
        """Close the file."""
        self._env.close()

    def load(self) -> State:
        """Return the saved state, an empty one when nothing was saved yet."""
        state = State()
        try:
            with self._env.begin() as txn, txn.cursor() as cursor:
                for key, value in unsealed(cursor):
                    if key == POSITION_KEY:
                        state.position = _position_in(value)
                    else:
                        load_row(state, msgspec.msgpack.decode(key), msgspec.msgpack.decode(value))
        except StoreError as error:
            raise StoreError(f"{self._path}: {error.message}") from None
        except (*DAMAGE, ValueError) as error:
            raise DamagedCheckpoint(
                f"{self._path} is damaged: {error}: restore the data directory from a copy of it"
            ) from None
        self.position = state.position
        return state

    def popped(self) -> Iterator[tuple[tuple[str, int, int], PopRow]]:
        """Yield the popped queues as they are saved, of a file that was loaded: group, id of the topic, queue."""
        with self._env.begin() as txn, txn.cursor() as cursor:
            for key, value in unsealed(cursor):
                row = () if key == POSITION_KEY else msgspec.msgpack.decode(key)
                if row and row[0] == "popped":
                    yield tuple(row[1:]), msgspec.msgpack.decode(value, type=PopRow)

    def save(self, changes: ChangedRows) -> None:
        """Save the changes since the last save, and sync. On failure it can be saved again."""
        position = (POSITION_KEY, seal(POSITION_KEY, msgspec.msgpack.encode(changes.position)))
        with self._env.begin(write=True) as txn:
            change(txn, [*changes.rows, position])
        self.position = changes.position

    def clear(self) -> None:
        """Delete the saved state, and sync: the state follows from the log alone."""
        with self._env.begin(write=True) as txn:
            txn.drop(self._env.open_db(txn=txn), delete=False)
            change(txn, ())  # writes a sum of no rows: `check` takes an empty table for a damaged one
        self.position = 0

    def rows(self) -> list[tuple[bytes, bytes]]:
        """Return all rows as stored, each with its checksum, for `restore`. Any thread may call this."""
        try:
            with self._env.begin() as txn, txn.cursor() as cursor:
                rows = [(bytes(key), bytes(value)) for key, value in cursor]
            for _ in unsealed(rows):
                pass
        except (*DAMAGE, RowDamage) as error:
            raise DamagedFile(
                f"{self._path} is damaged: {error}: stop the broker and run minimq-broker check"
            ) from None
        return [(key, stored) for key, stored in rows if key != SUM_KEY]

    def restore(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Put rows of another checkpoint in the place of all that was saved, and sync."""
        try:
            with self._env.begin(write=True) as txn:
                txn.drop(self._env.open_db(txn=txn), delete=False)
                for key, stored in rows:
                    _received(key, stored)
                change(txn, ((key, stored) for key, stored in rows if key != SUM_KEY))
        except lmdb.BadValsizeError:  # of a key, which is empty or too long
            raise StoreError("a state that was received has a row that no state has: copy it anew") from None


def position_of(rows: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the log position of rows of a checkpoint, 0 when nothing was saved. Raises `StoreError`: it is damaged."""
    found = [_received(key, stored) for key, stored in rows if key == POSITION_KEY]
    return _position_in(found[0]) if found else 0


def _position_in(value: bytes) -> int:
    try:
        return msgspec.msgpack.decode(value, type=_Position)
    except ValueError as error:
        raise StoreError(f"the log position of a state is none: {error}") from None


def _received(key: bytes, stored: bytes) -> bytes:
    try:
        return unseal(key, stored)
    except RowDamage as error:
        raise StoreError(f"a state that was received is damaged: {error}: copy it anew") from None
