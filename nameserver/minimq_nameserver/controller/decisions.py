"""Where the controller keeps what it has decided."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import lmdb
import msgspec

from minimq_common.errors import DataDirectoryInUse, InvalidArgument, StoreError
from minimq_common.replica_bounds import check_record
from minimq_common.replica_set import ReplicaSet

#: Address space for the file: a record takes less than a page, so this is enough for thousands of brokers.
_MAP_BYTES = 64 << 20


class DecisionFile:
    """The latest record of each replica set, in an LMDB file that this process alone has open.

    Args:
        directory: holds the file `decisions.mdb`; made when it is not there.

    Raises:
        DataDirectoryInUse: another process has it.
        StoreError: the directory cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "decisions.mdb"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"cannot use {directory} as the directory of a controller: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._env = lmdb.open(str(self._path), subdir=False, map_size=_MAP_BYTES, lock=False)
        except BlockingIOError:
            os.close(self._lock)
            raise DataDirectoryInUse(
                f"{directory} is in use by another controller: stop it first, or choose another directory"
            ) from None
        except lmdb.Error as error:
            os.close(self._lock)
            raise StoreError(f"{self._path} cannot be opened: {error}") from error

    def load(self) -> list[ReplicaSet]:
        """Return the record of each replica set.

        Raises:
            StoreError: the file is damaged.
        """
        try:
            with self._env.begin() as transaction:
                records = [msgspec.json.decode(value, type=ReplicaSet) for _, value in transaction.cursor()]
            for record in records:
                check_record(record)
            return records
        except (lmdb.Error, msgspec.MsgspecError, InvalidArgument) as error:
            raise StoreError(
                f"{self._path} cannot be read: {error}: move it away while the brokers run, which know what was "
                "decided; do not restore it from an old copy"
            ) from error

    def save(self, record: ReplicaSet) -> None:
        """Return when a record is on disk in place of the former one.

        Raises:
            StoreError: it is not, or nobody knows.
        """
        try:
            with self._env.begin(write=True) as transaction:
                transaction.put("\n".join(record.key).encode(), msgspec.json.encode(record))
        except lmdb.MapFullError:
            raise StoreError(
                f"{self._path} is full: it holds {_MAP_BYTES >> 20} MiB, thousands of brokers; move it away while the "
                "brokers run, which teach the controller what was decided, and records of brokers that are no more go"
            ) from None
        except lmdb.Error as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error

    def close(self) -> None:
        """Let another process have the directory."""
        self._env.close()
        os.close(self._lock)
