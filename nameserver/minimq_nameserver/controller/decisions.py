"""The file in which the controller keeps its decisions, and the thread that writes it."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import msgspec

from minimq_common.errors import DataDirectoryInUse, InvalidArgument, StoreError
from minimq_common.files.lmdb_files import check_file, make_file
from minimq_common.files.lmdb_pages import PageDamage
from minimq_common.files.sealed_rows import RowDamage, change, seal, unsealed
from minimq_common.replicas.replica_set import ReplicaSet, check_record

#: Address space for the file: a record takes less than a page, so this is enough for thousands of brokers.
_MAP_BYTES = 64 << 20


class DecisionFile:
    """The latest record of each replica set, in an LMDB file that this process alone has open."""

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
        """Return the record of each replica set."""
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
        if not self._readonly:  # a name server starts with it
            text += (
                ": move it away while the brokers run, which know what was decided; do not restore it from an old copy"
            )
        return StoreError(text)

    def save(self, *records: ReplicaSet) -> None:
        """Return when records are on disk in place of the former ones, all of them or, by an error, none."""
        keys = ["\n".join(record.key).encode() for record in records]
        rows = [(key, seal(key, msgspec.json.encode(record))) for key, record in zip(keys, records, strict=True)]
        try:
            with self._env.begin(write=True) as transaction:
                change(transaction, rows)
        except lmdb.MapFullError:
            raise StoreError(
                f"{self._path} is full: it holds {_MAP_BYTES >> 20} MiB, thousands of brokers; move it away while the "
                "brokers run: they report the decisions again, and records of former brokers are gone"
            ) from None
        except (lmdb.Error, RowDamage) as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error

    def close(self) -> None:
        """Let another process have the directory."""
        self._env.close()
        os.close(self._lock)


class DecisionWriter:
    """Has decisions on disk, and the event loop go on meanwhile. Lives on that loop.

    All that waits is written in one transaction, with one sync.
    """

    def __init__(self, file: DecisionFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="controller-writer")
        self._waiting: list[tuple[ReplicaSet, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, record: ReplicaSet) -> None:
        """Return when a record is on disk in place of the former one."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="controller-write")
        await written

    async def close(self) -> None:
        """Return when nothing is being written any more; what waits is not written."""
        for _, written in self._waiting:
            written.cancel()
        self._waiting.clear()
        await asyncio.to_thread(self._thread.shutdown)

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                records = [record for record, _ in batch]
                outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, self._save, records)
                for (_, written), error in zip(batch, outcomes, strict=True):
                    if written.done():  # whoever waited has gone
                        continue
                    if error is None:
                        written.set_result(None)
                    else:
                        written.set_exception(error)
        finally:
            self._writing = None

    def _save(self, records: Sequence[ReplicaSet]) -> list[Exception | None]:
        try:
            self._file.save(*records)
        except Exception as error:  # noqa: BLE001 - whatever it is, the waiting caller gets it
            if len(records) == 1:
                return [error]
        else:
            return [None] * len(records)
        # Where all of them do not fit some may, and nobody's fault becomes that of others.
        return [error for record in records for error in self._save([record])]
