"""The file of the controller's decisions."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import google_crc32c
import msgspec

from minimq_common.errors import DataDirectoryInUse, InvalidArgument, StoreError
from minimq_common.files.synced_files import write_whole
from minimq_common.replicas.replica_set import ReplicaSet, check_record

#: Enough for tens of thousands of brokers. Each decision writes the whole file.
_MAX_BYTES = 64 << 20


class DecisionFile:
    """The latest record of each replica set, in JSON after a line with its CRC-32C. Only one process may open it."""

    def __init__(self, directory: Path, *, readonly: bool = False) -> None:
        self._path = directory / "decisions.json"
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
            self._records = {record.key: record for record in self._read()}
        except BlockingIOError:
            os.close(self._lock)
            raise DataDirectoryInUse(
                f"{directory} is in use by another controller: stop it first, or choose another directory"
            ) from None
        except (OSError, ValueError, msgspec.MsgspecError, InvalidArgument) as error:
            os.close(self._lock)
            raise self._damaged(error) from None

    def _read(self) -> list[ReplicaSet]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            checksum, _, body = file.read(_MAX_BYTES + 1).partition(b"\n")
        if checksum != _checksum(body):
            raise ValueError("it does not match its CRC-32C")
        records = msgspec.json.decode(body, type=list[ReplicaSet])
        for record in records:
            check_record(record)
        return records

    def _damaged(self, error: Exception) -> StoreError:
        text = f"{self._path} cannot be read: {error}"
        if not self._readonly:  # a name server is starting
            text += ": move it away while the brokers run: they report the decisions again; do not restore an old copy"
        return StoreError(text)

    def load(self) -> list[ReplicaSet]:
        return [*self._records.values()]

    def save(self, record: ReplicaSet) -> None:
        """Replace the record of a replica set; returns once it is on disk. Raises `StoreError`."""
        records = {**self._records, record.key: record}
        body = msgspec.json.encode([*records.values()])
        if len(body) > _MAX_BYTES - 100:
            raise StoreError(
                f"{self._path} is full: it holds {_MAX_BYTES >> 20} MiB; move it away while the brokers run: they "
                "report the decisions again, and records of former brokers are gone"
            )
        try:
            write_whole(self._path, _checksum(body) + b"\n" + body)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error
        self._records = records

    def close(self) -> None:
        os.close(self._lock)


def _checksum(body: bytes) -> bytes:
    return b"%08x" % google_crc32c.value(body)
