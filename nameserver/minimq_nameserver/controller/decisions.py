"""The file of the controller's decisions."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import lmdb
import msgspec

from minimq_common.errors import DataDirectoryInUse, InvalidArgument, StoreError
from minimq_common.files.lmdb_pages import PageDamage, check_file, make_file
from minimq_common.files.sealed_rows import RowDamage, change, seal, unsealed
from minimq_common.replicas.replica_set import ReplicaSet, check_record

#: Maximum size of the file. A record takes less than a page, so this suffices for thousands of brokers.
_MAP_BYTES = 64 << 20


class DecisionFile:
    """The latest record of each replica set, in an LMDB file that only one process may open."""

    def __init__(self, directory: Path, *, readonly: bool = False) -> None:
        self._path = directory / "decisions.mdb"
        self._readonly = readonly
        if readonly and not self._path.is_file():
            raise StoreError(f"{directory} is not the directory of a controller (it has no file {self._path.name})")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"cannot use {directory} as the directory of a controller: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._path.exists():
                check_file(self._path, deep=readonly)
            else:
                make_file(self._path)
            self._env = lmdb.open(str(self._path), subdir=False, map_size=_MAP_BYTES, lock=False, readonly=readonly)
        except BlockingIOError:
            os.close(self._lock)
            raise DataDirectoryInUse(
                f"{directory} is in use by another controller: stop it first, or choose another directory"
            ) from None
        except PageDamage as error:
            os.close(self._lock)
            raise self._damaged(error) from None
        except (OSError, lmdb.Error) as error:
            os.close(self._lock)
            raise StoreError(f"{self._path} cannot be opened: {error}") from error
        try:
            self.load()
        except BaseException:
            self.close()
            raise

    def load(self) -> list[ReplicaSet]:
        try:
            with self._env.begin() as transaction, transaction.cursor() as cursor:
                rows = list(unsealed(cursor))
            records = [msgspec.json.decode(value, type=ReplicaSet) for _, value in rows]
            for record in records:
                check_record(record)
            return records
        except (lmdb.Error, msgspec.MsgspecError, InvalidArgument, RowDamage) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> StoreError:
        text = f"{self._path} cannot be read: {error}"
        if not self._readonly:  # a name server is starting
            text += ": move it away while the brokers run: they report the decisions again; do not restore an old copy"
        return StoreError(text)

    def save(self, record: ReplicaSet) -> None:
        """Replace the record of a replica set; returns once it is on disk. Raises `StoreError`."""
        key = "\n".join(record.key).encode()
        try:
            with self._env.begin(write=True) as transaction:
                change(transaction, [(key, seal(key, msgspec.json.encode(record)))])
        except lmdb.MapFullError:
            raise StoreError(
                f"{self._path} is full: it holds {_MAP_BYTES >> 20} MiB, thousands of brokers; move it away while the "
                "brokers run: they report the decisions again, and records of former brokers are gone"
            ) from None
        except (lmdb.Error, RowDamage) as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error

    def close(self) -> None:
        self._env.close()
        os.close(self._lock)
