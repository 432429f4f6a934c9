"""The checkpoint: an LMDB file with the rows of the state at a log position.

Recovery loads it and applies the later entries. Each save is synced, since a power failure can damage an LMDB file that
is written without sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, NamedTuple

import lmdb
import msgspec

from minimq_broker.features.registry import check_features, versions
from minimq_broker.log.lmdb_file import DAMAGE, DamagedFile, open_lmdb, require_sound
from minimq_broker.log.sealed_rows import SUM_KEY, RowDamage, change, seal, unseal, unsealed
from minimq_broker.state.state import State
from minimq_broker.state.state_rows import changed_rows, load_row
from minimq_common.errors import StoreError

POSITION_KEY = b"\0position"
#: How the keys of `State.features` begin: ["feature", name] in msgpack.
_FEATURE = b"\x92\xa7feature"
#: No log gets this long. Positions computed from it still fit into 64 bits.
_MAX_POSITION = 1 << 62
_Position = Annotated[int, msgspec.Meta(ge=0, le=_MAX_POSITION)]
#: Address space for the memory map; a row takes about 60 bytes.
_MAP_BYTES = 16 << 30


class DamagedCheckpoint(DamagedFile):
    """The checkpoint is damaged. It can be rebuilt from a log that is complete from position 0 on."""


class Snapshot(NamedTuple):
    """A saved state: the result of all entries up to a log position."""

    position: int
    rows: list[tuple[bytes, bytes]]


class ChangedRows(NamedTuple):
    """Changes of the state that the checkpoint does not have yet."""

    #: Log position of the state.
    position: int
    #: As stored; None for a deleted row.
    rows: list[tuple[bytes, bytes | None]]
    #: Called once they are saved.
    saved: Sequence[Callable[[], None]] = ()


def take_changes(state: State) -> ChangedRows:
    """Return the changes of a state since the last call, and reset them.

    The caller must save them, or recover the state from the checkpoint.
    """
    rows = []
    for row, value in changed_rows(state):
        key = msgspec.msgpack.encode(row)
        rows.append((key, None if value is None else seal(key, msgspec.msgpack.encode(value))))
    state.saved()
    return ChangedRows(state.position, rows, _savings(state))


def _savings(state: State) -> list[Callable[[], None]]:
    tables = [table.saving() for table in state.tables.values()]
    return [*filter(None, tables), state.saving()]


def check_saved_features(path: Path, directory: Path) -> bool:
    """Raise `DataDirectoryVersion` if a saved state uses features that this broker lacks; reads only.

    Returns whether the file is there and verified.
    """
    try:
        require_sound(path)
        if not path.exists():
            return False
        with closing(Checkpoint(path, readonly=True)) as saved:
            used = saved.used_features()
    except (*DAMAGE, StoreError):  # reported when the file is opened
        return False
    check_features(used, versions(), directory, "this broker")
    return True


class Checkpoint:
    """The saved state of one broker. Used by one thread at a time."""

    def __init__(self, path: Path, *, readonly: bool = False, verified: bool = False) -> None:
        self._path = path
        try:
            if not readonly and not verified:
                require_sound(path)
            self._env = open_lmdb(path, map_bytes=_MAP_BYTES, readonly=readonly)
        except DamagedFile as error:
            raise DamagedCheckpoint(error.message) from None
        #: Log position of the saved state; valid after `load`.
        self.position = 0

    def close(self) -> None:
        self._env.close()

    def load(self) -> State:
        """Return the saved state, or an empty one if nothing was saved yet."""
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
        for saved in _savings(state):
            saved()
        return state

    def used_features(self) -> dict[str, int]:
        """Return the versions of the features in the saved state, by name, without loading it."""
        found: dict[str, int] = {}
        with self._env.begin() as txn, txn.cursor() as cursor:
            more = cursor.set_range(_FEATURE)
            while more and cursor.key().startswith(_FEATURE):
                value = unseal(cursor.key(), cursor.value())
                found[msgspec.msgpack.decode(cursor.key())[1]] = msgspec.msgpack.decode(value, type=int)
                more = cursor.next()
        return found

    def save(self, changes: ChangedRows) -> None:
        """Save the changes since the last save, and sync. After a failure, call it again with the same changes."""
        position = (POSITION_KEY, seal(POSITION_KEY, msgspec.msgpack.encode(changes.position)))
        with self._env.begin(write=True) as txn:
            change(txn, [*changes.rows, position])
        self.position = changes.position

    def clear(self) -> None:
        """Delete the saved state, and sync: recovery then applies the whole log."""
        with self._env.begin(write=True) as txn:
            txn.drop(self._env.open_db(txn=txn), delete=False)
            change(txn, ())  # writes the checksum of no rows: `check` reports an empty table as damaged
        self.position = 0

    def rows(self) -> list[tuple[bytes, bytes]]:
        """Return all rows as stored, with their checksums, for `restore`. Any thread may call this."""
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
        """Replace the saved state by the rows of another checkpoint, and sync."""
        try:
            with self._env.begin(write=True) as txn:
                txn.drop(self._env.open_db(txn=txn), delete=False)
                for key, stored in rows:
                    _received(key, stored)
                change(txn, ((key, stored) for key, stored in rows if key != SUM_KEY))
        except lmdb.BadValsizeError:  # an empty key, or one that is too long
            raise StoreError("the received state has an invalid row: copy it again") from None


def position_of(rows: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the log position in the rows of a checkpoint, 0 if nothing was saved. Raises `StoreError` on damage."""
    found = [_received(key, stored) for key, stored in rows if key == POSITION_KEY]
    return _position_in(found[0]) if found else 0


def _position_in(value: bytes) -> int:
    try:
        return msgspec.msgpack.decode(value, type=_Position)
    except ValueError as error:
        raise StoreError(f"the log position of the state is invalid: {error}") from None


def _received(key: bytes, stored: bytes) -> bytes:
    try:
        return unseal(key, stored)
    except RowDamage as error:
        raise StoreError(f"the received state is damaged: {error}: copy it again") from None
