"""Makes a data directory from the saved state and the log of another replica.

Before the first change, a file marks the directory as unfinished; it is removed once everything is synced. An
interrupted copy cannot be resumed: it has to be started over.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import accumulate
from pathlib import Path

from minimq_broker.log.checkpoint import Checkpoint, Snapshot, position_of
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.data_dir import DataDirectory
from minimq_broker.log.disk import writing
from minimq_broker.log.file_checksum import make_checksum
from minimq_broker.log.lmdb_file import remove_lmdb
from minimq_broker.log.segment import rows_of
from minimq_common.errors import StoreError
from minimq_common.files.synced_files import sync_directory

#: Left by a copy that was interrupted before it marked the directory, or created by some file systems.
_IGNORED_NAMES = frozenset({"lock", "crash", "format", "format.new", "lost+found"})


class StoreCopy:
    """Makes a data directory. Until `finish` succeeds, it is marked as unfinished. Used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        snapshot: Snapshot,
        start: int,
        segment_bytes: int = 1 << 30,
        *,
        complete_from: int = 0,
        replace: bool = False,
    ) -> None:
        self.position = start
        self._complete_from = max(start, complete_from)
        self._has_gap = False
        self._state_position = position_of(snapshot.rows)
        if self._complete_from > self._state_position:
            raise StoreError(
                f"the log begins at {start} and is complete from {self._complete_from} on, behind the state, which is "
                f"at position {self._state_position}"
            )
        with ExitStack() as opening, writing(path):
            if not replace:  # before anything is created in it
                check_free(path)
            self._directory = DataDirectory(path, create=True)
            opening.callback(self._directory.close)
            if not replace:  # again, as another process may have finished a copy before this one got the lock
                check_free(path)
            self._segment_bytes = segment_bytes
            self._clear(replace=replace)
            self._log = CommitLog(self._directory.log_path, segment_bytes, start=start)
            opening.callback(self._log.close)
            with closing(Checkpoint(self._directory.state_path)) as checkpoint:
                checkpoint.restore(snapshot.rows)
            self._opened = opening.pop_all()

    def put(self, entries: Sequence[bytes]) -> None:
        """Add entries that begin at `position`, verified and synced."""
        ends = accumulate(map(len, entries), initial=self.position)
        ahead = sum(end < self._complete_from for end in ends)
        for part in filter(None, (entries[:ahead], entries[ahead:])):
            self._put(part)

    def _put(self, entries: Sequence[bytes]) -> None:
        places = [*zip(accumulate(map(len, entries), initial=self.position), entries, strict=False)]
        rows, index_rows = rows_of(places)
        with writing(self._directory.path):
            if self._log.active.used_bytes >= self._segment_bytes or self.position == self._complete_from:
                self._seal()
            self._log.append(self.position, places, rows, index_rows)
        self.position += sum(map(len, entries))

    def skip_to(self, position: int) -> None:
        """Continue at a later position: rewritings have removed the entries before it. Raises `StoreError`."""
        if not self.position <= position <= self._complete_from:
            raise StoreError(
                f"the log has a gap: entry at {position} where {self.position} was expected, and it is said to be "
                f"complete from {self._complete_from} on"
            )
        self._has_gap = self._has_gap or position > self.position
        self.position = position
        if position == self._complete_from:
            with writing(self._directory.path):
                self._seal()

    def _seal(self) -> None:
        if self.position == self._log.active.start:
            return
        if self._has_gap:
            self._log.active.mark_rewritten(self.position)
            self._has_gap = False
        sealed = self._log.active
        self._log.roll(self.position)
        for _ in make_checksum(sealed.path):
            pass

    def finish(self) -> None:
        """Complete the directory, so that a broker can open it; that applies the entries after the saved state."""
        if self.position < self._state_position:
            raise StoreError(
                f"the copy ends at {self.position}, ahead of the state, which is at {self._state_position}"
            )
        with writing(self._directory.path):
            if self._has_gap:  # the log ends with what rewritings have left
                self._seal()
            self._log.close()
            sync_directory(self._directory.path)  # all names must be on disk before the mark is removed
            self._directory.copying_path.unlink()
            sync_directory(self._directory.path)
        self.close()

    def close(self) -> None:
        self._opened.close()

    def _clear(self, *, replace: bool) -> None:
        directory = self._directory
        directory.mark_copying()
        for file in (*sorted(directory.log_path.glob("*.mdb")), directory.state_path):
            remove_lmdb(file)
        for file in directory.log_path.glob("*"):  # lock files, damage marks
            file.unlink()
        if not replace:  # an interrupted copy may have been made for another broker
            directory.owner_path.unlink(missing_ok=True)
        sync_directory(directory.log_path)
        sync_directory(directory.path)


def check_free(path: Path) -> None:
    """Raise `StoreError` if a directory holds anything except an interrupted copy, or is a file."""
    with writing(path):
        names = {file.name for file in path.iterdir()} if path.exists() else set[str]()
        log_path = path / "commitlog"
        if log_path.is_dir() and not any(log_path.iterdir()):
            names.discard(log_path.name)
    if "copying" not in names and names - _IGNORED_NAMES:
        raise StoreError(f"{path} holds {min(names - _IGNORED_NAMES)}: choose an empty directory")
