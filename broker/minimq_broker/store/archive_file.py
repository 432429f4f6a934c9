"""The file of archived dead letters as a store uses it: a damaged archive is set aside, and an empty one started."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from minimq_broker.store.data_dir import sync_directory
from minimq_broker.store.dead_letter_archive import DeadLetterArchive
from minimq_broker.store.lmdb_file import DAMAGE, free_name, remove_lmdb
from minimq_broker.store.segment_files import is_begun

log = logging.getLogger(__name__)

T = TypeVar("T")


class ArchiveFile:
    """The archive of a store, if there is one. Thread-safe; all access to the archive goes through `ask`."""

    def __init__(self, path: Path | None, max_bytes: int, *, readonly: bool = False) -> None:
        self.current: DeadLetterArchive | None = None
        self.damage = ""
        self._path = path
        self._max_bytes = max_bytes
        self._readonly = readonly
        self._lock = threading.RLock()
        if path is None or not path.exists():
            return
        try:
            if not readonly or is_begun(path):
                self.current = DeadLetterArchive(path, max_bytes, readonly=readonly)
        except DAMAGE as error:
            self.set_aside(None, error)

    def close(self) -> None:
        """Close the archive."""
        if self.current is not None:
            self.current.close()

    def begin(self) -> DeadLetterArchive:
        """Return the archive, which is made when it is not there. Raises `StoreFull`, `StoreError`."""
        with self._lock:
            if self.current is None:
                assert self._path is not None
                self.current = DeadLetterArchive(self._path, self._max_bytes)
                sync_directory(self._path.parent)
            return self.current

    def ask(self, question: Callable[[DeadLetterArchive], T], without: T) -> T:
        """Return the answer of the archive; without one, or when it turns out to be damaged, return `without`."""
        archive = self.current
        if archive is None:
            return without
        try:
            return question(archive)
        except DAMAGE as error:
            self.set_aside(archive, error)
            return without

    def set_aside(self, archive: DeadLetterArchive | None, error: Exception) -> None:
        """Rename a damaged archive, open or not; who reads it finishes. Nothing is done when somebody else has."""
        with self._lock:
            if self.current is not archive or self._path is None:
                return
            self.current = None
            self.damage = str(error) or repr(error)
            if self._readonly:
                return
            aside = free_name(self._path)
            try:
                size = self._path.stat().st_size
                if archive is not None:
                    archive.rename_file(aside)
                else:
                    self._path.rename(aside)
                    remove_lmdb(self._path)  # its lock file
                sync_directory(self._path.parent)
            except OSError as failure:
                log.error("store: damaged dead letters are not set aside file=%s error=%s", self._path, failure)
                return
        log.error(
            "store: damaged dead letters are set aside, and no longer read file=%s bytes=%d error=%s; take them from "
            "another replica or a backup, or delete the file",
            aside,
            size,
            self.damage,
        )


def set_aside_in(folder: Path) -> list[str]:
    """Return the names of the archives in a data directory that were set aside."""
    return sorted(file.name for file in folder.glob("dead-letters.mdb.damaged-*"))
