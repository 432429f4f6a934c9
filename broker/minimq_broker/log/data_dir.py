"""The data directory of one broker: its format, its owner, and its lock.

Its files::

    DIR/format          the version of the format
    DIR/owner           the broker whose data it is, in JSON; a snapshot has none until a broker is started with it
    DIR/lock            locked by the process that has the directory open
    DIR/commitlog/      the segments, see `commit_log.py`
    DIR/state.mdb       the checkpoint, see `checkpoint.py`; `.damaged-N`: one that was set aside
    DIR/clock           the time by which old data is deleted
    DIR/crash           stacks of a process that a memory fault killed, for the next start, see `crash_note.py`
    DIR/copying         exists while everything is copied from another replica, see `copy.py`
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import google_crc32c

from minimq_broker.log.disk import no_room
from minimq_common.errors import CopyInterrupted, DataDirectoryInUse, DataDirectoryVersion, StoreError, StoreFull
from minimq_common.files.synced_files import sync_directory, write_whole

FORMAT = 7


@dataclass(frozen=True, slots=True)
class Owner:
    """The broker that a data directory belongs to. Masters count its acknowledgements under its replica id."""

    cluster: str
    name: str
    id: int

    @property
    def crc32c(self) -> str:
        """Checksum, stored in the file too."""
        return f"{google_crc32c.value(json.dumps(asdict(self)).encode()):08x}"

    def __str__(self) -> str:
        return f"{self.name} (cluster {self.cluster}, id {self.id})"


class DataDirectory:
    """A data directory, locked by this process until `close`."""

    def __init__(self, path: Path, *, create: bool, owner: Owner | None = None, checks_format: bool = True) -> None:
        self.path = path
        self.log_path = path / "commitlog"
        self.state_path = path / "state.mdb"
        self.copying_path = path / "copying"
        self.owner_path = path / "owner"
        try:
            if create:
                self.log_path.mkdir(parents=True, exist_ok=True)
            elif not (path / "format").is_file():
                if any(self.log_path.glob("*.mdb")):
                    raise StoreError(self._formatless)
                raise StoreError(f"{path} is not the data directory of a broker (it has no file named format)")
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            self._take_lock()
            if checks_format:
                self._check_format()
            if owner is not None:
                self._check_owner(owner)
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, OSError):
                raise _unusable(path, error) from error
            raise

    def close(self) -> None:
        os.close(self._lock)

    def check_whole(self) -> None:
        """Raise `CopyInterrupted` if the directory holds an incomplete copy."""
        if self.copying_path.exists():
            raise CopyInterrupted(
                f"{self.path} holds a part of a copy that was interrupted: copy again, or use another directory"
            )

    def mark_copying(self) -> None:
        """Mark the directory as an incomplete copy, and sync."""
        with self.copying_path.open("w") as mark:
            os.fsync(mark.fileno())
        sync_directory(self.path)
        write_whole(self.path / "format", f"{FORMAT}\n".encode())

    def owner(self) -> Owner:
        """Return the owner of the data. Raises `StoreError` if it cannot be read."""
        marker = self.owner_path
        try:
            found = json.loads(marker.read_text())
            checksum = found.pop("crc32c")
            owner = Owner(**found)
        except FileNotFoundError:
            raise StoreError(f"{self.path} has no file {marker.name}, which says whose data it holds") from None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{marker}, which says whose data {self.path} holds, cannot be read: {error!r}") from None
        if checksum != owner.crc32c:
            raise StoreError(f"{marker}, which says whose data {self.path} holds, does not match its CRC-32C")
        return owner

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise DataDirectoryInUse(
                f"{self.path} is in use by process {holder}: stop it first, or choose another directory"
            ) from None
        # Overwrites the file in place: on a full disk, an emptied file might not get its space back. The content is
        # informational only.
        with contextlib.suppress(OSError):
            os.ftruncate(self._lock, os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0))

    @property
    def _formatless(self) -> str:
        return (
            f"{self.path} holds a log, but no file named format: restore that with the rest, or if nothing else is "
            f"missing and its release had format {FORMAT}, write {FORMAT} into it"
        )

    def _check_format(self) -> None:
        marker = self.path / "format"
        if not marker.exists():
            if any(self.log_path.glob("*.mdb")):
                raise StoreError(self._formatless)
            write_whole(marker, f"{FORMAT}\n".encode())
            return
        text = marker.read_text(errors="replace").strip()
        if text != str(FORMAT):
            raise DataDirectoryVersion(
                f"{self.path} has data format {text[:20]!r}, this release reads format {FORMAT}: "
                "use the release that wrote it, or an empty directory"
            )

    def _check_owner(self, owner: Owner) -> None:
        marker = self.owner_path
        if not marker.exists():
            write_whole(marker, json.dumps({**asdict(owner), "crc32c": owner.crc32c}).encode() + b"\n")
            return
        try:
            found = self.owner()
        except StoreError as error:
            raise StoreError(f"{error.message}: delete {marker.name} if the data belongs to {owner}") from None
        if found != owner:
            raise StoreError(
                f"{self.path} is the data directory of {found}, and this is {owner}: give each broker a directory of "
                f"its own; only to continue with the data of a broker that no longer exists, delete {marker}"
            )


def _unusable(path: Path, error: OSError) -> StoreFull | StoreError:
    return no_room(error, path, path) or StoreError(f"cannot use {path} as a data directory: {error}")
