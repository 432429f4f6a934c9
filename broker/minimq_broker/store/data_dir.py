"""The data directory of one broker: which format it has, and that one process alone uses it.

Its files::

DIR/format          the version of the format
DIR/lock            locked by the process that has the directory open
DIR/commitlog/      the segments, see `commit_log.py`
DIR/state.mdb       the checkpoint, see `checkpoint.py`
DIR/kept-offsets.mdb  beside the log: what groups committed at a slave without a master, see `kept_offsets.py`
DIR/copying         there while everything is copied from another replica, see `copy.py`
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from minimq_common.errors import CopyInterrupted, DataDirectoryInUse, DataDirectoryVersion, StoreError

FORMAT = 2


class DataDirectory:
    """A data directory, held by this process until `close`.

    Args:
        path: the directory; made when it is not there and `create` is set.
        create: make and mark an empty directory as a data directory.

    Raises:
        DataDirectoryInUse: another process holds it.
        DataDirectoryVersion: it was written in a format that this release does not read.
        StoreError: it is not a data directory, or cannot be used.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self.log_path = path / "commitlog"
        self.state_path = path / "state.mdb"
        self.copying_path = path / "copying"
        try:
            if create:
                self.log_path.mkdir(parents=True, exist_ok=True)
            elif not (path / "format").is_file():
                raise StoreError(f"{path} is not the data directory of a broker (it has no file named format)")
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"cannot use {path} as a data directory: {error}") from error
        try:
            self._take_lock()
            self._check_format()
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let other processes have the directory."""
        os.close(self._lock)

    def check_whole(self) -> None:
        """Raise `CopyInterrupted` when the directory holds a part of a copy."""
        if self.copying_path.exists():
            raise CopyInterrupted(
                f"{self.path} holds a part of a copy that was interrupted: copy anew, or use another directory"
            )

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise DataDirectoryInUse(
                f"{self.path} is in use by process {holder}: stop it first, or choose another directory"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _check_format(self) -> None:
        marker = self.path / "format"
        if not marker.exists():
            # Under another name first, and synced: a power cut leaves the whole marker or none.
            made = self.path / "format.new"
            with made.open("w") as file:
                file.write(f"{FORMAT}\n")
                file.flush()
                os.fsync(file.fileno())
            made.rename(marker)
            sync_directory(self.path)
            return
        text = marker.read_text().strip()
        if text != str(FORMAT):
            raise DataDirectoryVersion(
                f"{self.path} has data format {text[:20]!r}, this release reads format {FORMAT}: "
                "use the release that wrote it, or an empty directory"
            )


def sync_directory(path: Path) -> None:
    """Make new and removed names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
