"""The CommitLog: a sequence of segments that together hold everything durable of a broker.

A log position is the size in bytes of all entries before it: positions only grow, and their difference is a size. The
name of a segment is the position at which it starts. Only the last segment is written. The others never change, but
adjacent ones may be rewritten: replaced by one file with the entries that are still needed.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import lmdb

from minimq_broker.core.state import QueueKey
from minimq_broker.store.data_dir import sync_directory
from minimq_broker.store.held.due_table import DueRow
from minimq_broker.store.lmdb_file import lock_file, remove_lmdb
from minimq_broker.store.log_reader import LogReader
from minimq_broker.store.rows import Row
from minimq_broker.store.segment import Segment
from minimq_broker.store.segment_file import segment_files
from minimq_broker.store.upkeep.compaction_file import forget_rounds
from minimq_broker.store.upkeep.crash_note import startup_verify_s
from minimq_broker.store.upkeep.log_marks import DamageMarks, keep, record_log_start
from minimq_broker.store.upkeep.repair import NOTHING_VERIFIED, repair_at_start
from minimq_common.errors import StoreError


class CommitLog(LogReader):
    """The segments of one broker. One thread writes and rolls; any thread may read, and remove the oldest segment."""

    def __init__(
        self, path: Path, segment_bytes: int, *, readonly: bool = False, without: Collection[str] = (), start: int = 0
    ) -> None:
        super().__init__(path)
        self._segment_bytes = segment_bytes
        self.lost: dict[int, str] = {}
        #: Segments that start here or later were verified when they were opened.
        self._verified_from = NOTHING_VERIFIED
        #: Guards the list of segments: no segment is added, replaced or removed while it is held.
        self.kept = threading.RLock()
        self.missing = ""
        try:
            files = segment_files(path, without)
            if not readonly:
                self.lost, self._verified_from = repair_at_start(files, segment_bytes, startup_verify_s(path.parent))
            for file in files:
                self.segments.append(
                    Segment(file, int(file.stem), segment_bytes, readonly=readonly, verified=not readonly)
                )
            self._use(_without_replaced(self.segments, readonly=readonly))
            if not self.segments and not readonly:
                self._add(start)
            if not readonly:
                self.missing = record_log_start(path, self.start)
                for made in path.glob("*.new*"):  # left over from an interrupted rewriting or repair
                    made.unlink()
            starts = frozenset(segment.start for segment in self.segments)
            self.damage = DamageMarks(path, starts, readonly=readonly)
        except BaseException:
            self.close()
            raise
        for segment in self.segments[:-1]:
            segment.sealed = True
            segment.pages.is_over = readonly or segment.start >= self._verified_from

    def close(self) -> None:
        """Close all segments."""
        for segment in self.segments:
            segment.close()

    @property
    def disk_bytes(self) -> int:
        """Disk space that the segments use."""
        size = 0
        for segment in self.segments:
            with suppress(FileNotFoundError):  # removed by another thread
                size += segment.path.stat().st_size
        return size

    @property
    def active(self) -> Segment:
        """The last segment, the only one that is written."""
        return self.segments[-1]

    def append(
        self, end: int, entries: list[tuple[int, bytes]], rows: list[tuple[QueueKey, Row]], due: Sequence[DueRow] = ()
    ) -> None:
        """Append a group of entries and their rows, and sync. `end` is where the log ends now."""
        try:
            self.segments[-1].write(entries, rows, due)
        except lmdb.MapFullError:
            self.roll(end)
            self.segments[-1].write(entries, rows, due)

    def roll_if_full(self, end: int) -> None:
        """Begin a new segment at position `end` if the active one has reached its size."""
        # A segment whose entries were all truncated keeps its file size, but has room.
        active = self.segments[-1]
        if active.used_bytes >= self._segment_bytes and end != active.start:
            self.roll(end)

    def roll(self, end: int) -> None:
        """Seal the active segment and begin the next one at position `end`."""
        sealed = self.active
        if end == sealed.start:
            raise StoreError(f"one group of entries does not fit into a segment of {self._segment_bytes} bytes")
        self._add(end)
        sealed.sealed = True

    def _add(self, start: int) -> None:
        file = self.path / f"{start:020d}.mdb"
        try:
            segment = Segment(file, start, self._segment_bytes)
        except BaseException:
            remove_lmdb(file)
            raise
        with self.kept:
            self._use([*self.segments, segment])
        sync_directory(self.path)

    def remove_first(self, needed_from: int) -> bool:
        """Remove the oldest segment and its file; return whether there was one to remove. Any thread may call this.

        Keeps the active segment, and any with entries at or after `needed_from`, which recovery needs. The file is
        unlinked: current readers can finish, and the disk space is freed when the last of them closes it.
        """
        with self.kept:
            first, *rest = self.segments
            if not rest or rest[0].start > needed_from:
                return False
            keep(self.path, rest[0].start)  # before the deletion
            first.remove_file()
            sync_directory(self.path)  # before the next deletion: a power failure must not leave a gap
            self._use(rest)
            self.damage.discard(first.start)
        return True

    def mark_damaged(self, start: int, reason: str) -> bool:
        """Mark a segment as damaged; return False if it is gone or already marked. Any thread may call this."""
        with self.kept:
            return any(segment.start == start for segment in self.segments) and self.damage.add(start, reason)

    def clear_damage_mark(self, start: int) -> None:
        """Remove the damage mark of a segment without a repair. Any thread may call this."""
        with self.kept:
            self.damage.discard(start)

    def install_repaired(self, made: Path, start: int) -> bool:
        """Install a repaired segment in place of the sealed one with its start, or before the first segment.

        Returns False if it has no such place any more.
        """
        with self.kept:
            file = self.path / f"{start:020d}.mdb"
            former = next((segment for segment in self.segments if segment.start == start), None)
            if former is self.active or (former is None and start >= self.start):
                return False
            if former is not None:
                former.let_go()
            lock_file(file).unlink(missing_ok=True)
            made.replace(file)
            sync_directory(self.path)
            segment = Segment(file, start, self._segment_bytes)
            segment.sealed = True
            others = [each for each in self.segments if each is not former]
            self._use(sorted([segment, *others], key=lambda each: each.start))
            self.damage.discard(start)
            # The segment is from another replica, where it may be compacted less far.
            forget_rounds(self.path)
        return True

    def replace(self, former: Sequence[Segment], made: Path) -> bool:
        """Replace adjacent sealed segments by one file that was made from them. Any thread may call this.

        Returns False if one of them was removed, replaced or marked as damaged meanwhile. Crash-safe: the next start
        finds either all former segments, or the new one, and deletes the remains of the former ones.
        """
        first, *others = former
        with self.kept:
            index = self.segments.index(first) if first in self.segments else 0
            is_there = self.segments[index : index + len(former)] == [*former] and former[-1] is not self.active
            if not is_there or any(segment.start in self.damage.reasons for segment in former):
                return False
            first.let_go()
            lock_file(first.path).unlink(missing_ok=True)
            made.replace(first.path)
            sync_directory(self.path)
            segment = Segment(first.path, first.start, self._segment_bytes)
            segment.sealed = True
            self._use([*self.segments[:index], segment, *self.segments[index + len(former) :]])
            for each in others:
                each.remove_file()
            sync_directory(self.path)
        return True

    def truncate(self, position: int) -> None:
        """Delete all entries from a position on, last segment first. On the writer's thread, without readers."""
        self.truncations += 1
        with self.kept:
            while len(self.segments) > 1 and self.active.start >= position:
                *rest, last = self.segments
                if last.start == position and rest[-1].rewritten_to:
                    break  # a rewritten segment cannot be appended to: keep this one, and empty it
                self._use(rest)
                last.remove_file()
                sync_directory(self.path)
                self.damage.discard(last.start)
            self.active.truncate(position)


def _without_replaced(segments: Iterable[Segment], *, readonly: bool) -> list[Segment]:
    # A crash may have interrupted `replace` before it deleted the former segments.
    kept: list[Segment] = []
    for segment in segments:
        if not kept or segment.start >= kept[-1].rewritten_to:
            kept.append(segment)
            continue
        segment.close()
        if not readonly:
            remove_lmdb(segment.path)
    return kept
