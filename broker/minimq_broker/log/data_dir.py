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
    DIR/rebuilding/     an unfinished copy of another replica next to the existing data, see `replication/rebuild.py`
    DIR/rebuilt/        a finished and synced copy: replaces log and state when the directory is opened
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
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

    def __init__(self, path: Path, *, create: bool, owner: Owner | None = None, rebuilds: bool = False) -> None:
        self.path = path
        self.log_path = path / "commitlog"
        self.state_path = path / "state.mdb"
        self.copying_path = path / "copying"
        self.owner_path = path / "owner"
        self.rebuilding_path = path / "rebuilding"
        self._rebuilt_path = path / "rebuilt"
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
            self._put_rebuilt_in_place()
            if not rebuilds:
                self._check_format()
            if owner is not None:
                self._check_owner(owner)
                shutil.rmtree(self.rebuilding_path, ignore_errors=True)  # from a rebuild that was given up
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

    def replace_by_rebuilt(self) -> None:
        """Replace log and state by the finished and synced copy at `rebuilding_path`.

        Crash-safe: once the first step is done, the next start completes the replacement.
        """
        self.rebuilding_path.rename(self._rebuilt_path)
        sync_directory(self.path)
        self._put_rebuilt_in_place()

    def _put_rebuilt_in_place(self) -> None:
        rebuilt = self._rebuilt_path
        if not rebuilt.is_dir():
            return
        mark = rebuilt / "format"
        if mark.exists():
            former = [self.state_path, self.copying_path]
            former += [path.with_name(f"{path.name}-lock") for path in former]
            for file in (*self.log_path.glob("*"), *former):
                file.unlink(missing_ok=True)
            write_whole(self.path / mark.name, mark.read_bytes())
            sync_directory(self.log_path)
            sync_directory(self.path)
            mark.unlink()
            sync_directory(rebuilt)
        for path in (self.log_path, self.state_path):
            made = rebuilt / path.name
            if made.exists():
                made.replace(path)
        sync_directory(self.path)
        shutil.rmtree(rebuilt)
        sync_directory(self.path)

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
