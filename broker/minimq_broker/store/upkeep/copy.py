"""A copy of another replica: a data directory made from its saved state and its log.

A file marks the directory as unfinished from before the first change until everything is synced. An interrupted copy
is of no use: it is started over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb

from minimq_broker.store.checkpoint import Checkpoint, Snapshot, position_of
from minimq_broker.store.commit_log import CommitLog
from minimq_broker.store.data_dir import DataDirectory, sync_directory
from minimq_broker.store.disk import is_full
from minimq_broker.store.lmdb_file import remove_lmdb
from minimq_broker.store.segment import Segment, rows_of
from minimq_common.errors import StoreError, StoreFull

#: What a copy that is interrupted before it has marked the directory may leave, and what some file systems begin with.
_OF_NO_CONCERN = frozenset({"lock", "crash", "format", "format.new", "lost+found"})
#: Entries with their log positions. They come in the order of their positions, and none overlaps another one.
Placed = list[tuple[int, bytes]]


class StoreCopy:
    """A data directory in the making; used by one thread at a time. Leaving it unfinished leaves it marked."""

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
                f"of position {self._state_position}"
            )
        with ExitStack() as opening, writing(path):
            if not replace:  # before anything is made in it
                check_free(path)
            self._directory = DataDirectory(path, create=True)
            opening.callback(self._directory.close)
            if not replace:  # again, now that nobody else finishes a copy in it
                check_free(path)
            self._segment_bytes = segment_bytes
            self._clear(replace=replace)
            self._log = CommitLog(self._directory.log_path, segment_bytes, start=start)
            opening.callback(self._log.close)
            checkpoint = Checkpoint(self._directory.state_path)
            opening.callback(checkpoint.close)
            checkpoint.restore(snapshot.rows)
            checkpoint.close()
            self._opened = opening.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put(self, entries: Sequence[bytes]) -> None:
        """Add entries that begin at `position`, verified and synced."""
        ahead = 0 if self.position >= self._complete_from else self._ahead(entries)
        for part in filter(None, (entries[:ahead], entries[ahead:])):
            self._put(part)

    def _ahead(self, entries: Sequence[bytes]) -> int:
        ends = accumulate(map(len, entries), initial=self.position)
        return sum(end < self._complete_from for end in ends)

    def _put(self, entries: Sequence[bytes]) -> None:
        places = placed(entries, self.position)
        rows, due = rows_of(places)
        with writing(self._directory.path):
            if self._log.active.used_bytes >= self._segment_bytes or self.position == self._complete_from:
                self._seal()
            self._log.append(self.position, places, rows, due)
        self.position += sum(map(len, entries))

    def skip_to(self, position: int) -> None:
        """Go on at a later position: entries before it were left out by rewritings. Raises `StoreError`."""
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
        self._log.roll(self.position)

    def finish(self) -> None:
        """Make a data directory of it that a broker can open. Entries behind the saved state are applied then."""
        if self.position < self._state_position:
            raise StoreError(f"the copy ends at {self.position}, ahead of the state, of {self._state_position}")
        with writing(self._directory.path):
            if self._has_gap:  # nothing has followed what rewritings have left
                self._seal()
            self._log.close()
            sync_directory(self._directory.path)  # all names are there before the mark is not
            self._directory.copying_path.unlink()
            sync_directory(self._directory.path)
        self.close()

    def close(self) -> None:
        """Close all files. Idempotent."""
        self._opened.close()

    def _clear(self, *, replace: bool) -> None:
        directory = self._directory
        with directory.copying_path.open("w") as mark:
            os.fsync(mark.fileno())
        sync_directory(directory.path)
        for file in (*sorted(directory.log_path.glob("*.mdb")), directory.state_path):
            remove_lmdb(file)
        for file in directory.log_path.glob("*"):  # lock files, marks of damage
            file.unlink()
        if not replace:  # they are of the broker for which the interrupted copy was made
            directory.owner_path.unlink(missing_ok=True)
        sync_directory(directory.log_path)
        sync_directory(directory.path)


class SegmentCopy:
    """A segment in the making beside those that it will replace; used by one thread at a time."""

    def __init__(self, path: Path, start: int, room_bytes: int) -> None:
        self.position = self.start = start
        self.has_gap = False
        self.path = path
        with writing(path.parent):
            remove_lmdb(path)  # of one that was interrupted
            self._segment = Segment(path, start, room_bytes)

    def put(self, entries: Placed) -> None:
        """Add entries behind those that it has, verified and synced. Raises `CorruptEntry`, `StoreError`."""
        for position, data in entries:
            if position < self.position:
                raise StoreError(f"an entry cannot stand at {position}, before another one ends at {self.position}")
            self.skip_to(position)
            self.position += len(data)
        if entries:
            rows, due = rows_of(entries)
            with writing(self.path.parent):
                self._segment.write(entries, rows, due)

    def skip_to(self, position: int) -> None:
        """Go on at a position, which is a later one where entries are missing."""
        self.has_gap = self.has_gap or position > self.position
        self.position = position

    def finish(self, rewritten_to: int = 0) -> None:
        """Close it; with a position mark it before as rewritten, and as ending there."""
        if rewritten_to:
            with writing(self.path.parent):
                self._segment.mark_rewritten(rewritten_to)
        self._close()

    def give_up(self) -> None:
        """Close and delete the file, unless it has its place by now. Idempotent."""
        self._close()
        remove_lmdb(self.path)

    def _close(self) -> None:
        with suppress(lmdb.Error):
            self._segment.close()


def placed(entries: Sequence[bytes], position: int) -> Placed:
    """Return entries that follow on one another from a log position on with their places."""
    return [*zip(accumulate(map(len, entries), initial=position), entries, strict=False)]


def check_free(path: Path) -> None:
    """Raise `StoreError` if a directory holds anything except an interrupted copy, or is a file."""
    with writing(path):
        names = {file.name for file in path.iterdir()} if path.exists() else set[str]()
        log_path = path / "commitlog"
        if log_path.is_dir() and not any(log_path.iterdir()):
            names.discard(log_path.name)
    if "copying" not in names and names - _OF_NO_CONCERN:
        raise StoreError(f"{path} holds {min(names - _OF_NO_CONCERN)}: choose an empty directory")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the cause when something in a directory cannot be written."""
    try:
        yield
    except (OSError, lmdb.Error) as error:
        if is_full(error, path):
            raise StoreFull(f"the disk of {path} is full ({error}): free space, then copy again") from error
        raise StoreError(f"{path} cannot be written: {error}") from error
