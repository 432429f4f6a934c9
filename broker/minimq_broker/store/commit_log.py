"""The CommitLog: a row of segments that together hold every durable fact of a broker.

A log position counts the bytes of all entries before it, so positions only grow and their difference is a size. A
segment is named by the position at which it starts. Only the last one is written; the others never change.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import lmdb

from minimq_broker.core.state import QueueKey
from minimq_broker.store.archive_file import ArchiveFile
from minimq_broker.store.crash_note import time_to_look
from minimq_broker.store.damage_marks import DamageMarks
from minimq_broker.store.data_dir import sync_directory
from minimq_broker.store.dead_letter_archive import DeadLetterArchive
from minimq_broker.store.first_position import keep, look_and_keep
from minimq_broker.store.lmdb_file import DAMAGE, lock_file, remove_lmdb
from minimq_broker.store.repair import NOT_LOOKED, repair_at_start
from minimq_broker.store.rows import ReadLimits, ReadResult, Row
from minimq_broker.store.segment import Segment
from minimq_broker.store.segment_files import segment_files, total_bytes
from minimq_common.errors import CorruptEntry, StoreError, SystemBusy

T = TypeVar("T")

#: Retry delay of readers of a segment that is being repaired, in seconds.
_COME_BACK_S = 1.0


@dataclass(frozen=True, slots=True)
class LogObserver:
    """Functions that the log calls, on any thread.

    Attributes:
        name_of: returns how a queue is called in errors.
        damage_found: called with the start of a damaged segment, and the reason.
    """

    name_of: Callable[[QueueKey], str]
    damage_found: Callable[[int, str], None]


#: For callers that go by what is raised, such as tools.
UNOBSERVED = LogObserver(str, lambda start, reason: None)


class CommitLog:
    """The segments of one broker. One thread writes and rolls; any thread may read, and remove the oldest segment.

    A reader has the segments that it found when it began, whatever is added or removed meanwhile.

    Args:
        path: the directory of the segments.
        segment_bytes: size at which a segment is sealed and the next one begun.
        observer: its callbacks.
        readonly: look only; nothing is made.
        without: names of damaged segments that are left out.
        start: position of the first entry of an empty log.
        archive: file of archived dead letters, and its limit in bytes, 0 without one; None if they are not needed.

    Attributes:
        archive_file: the archive of those dead letters.
        damage: marks of damaged segments, which are to be repaired.
        lost: what was lost of segments that were damaged when it was opened, by their starts.
        missing: description of what is missing before the first segment; empty when nothing is.
    """

    def __init__(
        self,
        path: Path,
        segment_bytes: int,
        observer: LogObserver,
        *,
        readonly: bool = False,
        without: Collection[str] = (),
        start: int = 0,
        archive: tuple[Path | None, int] = (None, 0),
    ) -> None:
        self.path = path
        self.archive_file = ArchiveFile(None, 0)
        self._segment_bytes = segment_bytes
        self.lost: dict[int, str] = {}
        #: Segments from here on were verified when they were opened.
        self._looked_from = NOT_LOOKED
        #: Only ever replaced as a whole, under the lock.
        self.segments: list[Segment] = []
        self._changing = threading.RLock()
        self.missing = ""
        self._observer = observer
        try:
            files = segment_files(path, readonly=readonly, without=without)
            if not readonly:
                self.lost, self._looked_from = repair_at_start(files, segment_bytes, time_to_look(path.parent))
            for file in files:
                self.segments.append(
                    Segment(file, int(file.stem), segment_bytes, readonly=readonly, verified=not readonly)
                )
            if not self.segments and not readonly:
                self._add(start)
            self.archive_file = ArchiveFile(*archive, readonly=readonly)
            if not readonly:
                self.missing = look_and_keep(path, self.start)
                for made in path.glob("*.new*"):  # its making was interrupted
                    made.unlink()
            starts = frozenset(segment.start for segment in self.segments)
            self.damage = DamageMarks(path, starts, readonly=readonly)
        except BaseException:
            self.close()
            raise
        for segment in self.segments[:-1]:
            segment.sealed = True
            segment.pages.is_over = readonly or segment.start >= self._looked_from

    def report_damage(self, start: int, reason: str) -> None:
        """Report that the segment at a position is damaged. Any thread may call this."""
        self._observer.damage_found(start, reason)

    def close(self) -> None:
        """Close all segments."""
        for segment in self.segments:
            segment.close()
        self.archive_file.close()

    @property
    def archive(self) -> DeadLetterArchive | None:
        """The archive; None while there is none."""
        return self.archive_file.current

    @property
    def start(self) -> int:
        """Position of the first entry that is still stored."""
        return self.segments[0].start if self.segments else 0

    @property
    def end(self) -> int:
        """Position after the last entry."""
        return self.segments[-1].end if self.segments else 0

    @property
    def disk_bytes(self) -> int:
        """Disk that the segments use."""
        return total_bytes(self.segments)

    @property
    def active(self) -> Segment:
        """The segment that is written to."""
        return self.segments[-1]

    def append(self, end: int, entries: list[tuple[int, bytes]], rows: list[tuple[QueueKey, Row]]) -> None:
        """Add a group of entries, with the rows of the batches among them, at the position where the log ends; sync."""
        try:
            self._put(entries, rows)
        except lmdb.MapFullError:
            self.roll(end)
            self._put(entries, rows)

    def _put(self, entries: list[tuple[int, bytes]], rows: list[tuple[QueueKey, Row]]) -> None:
        segment = self.active
        with segment.begin() as txn:
            segment.put(txn, entries, rows)

    def roll_if_full(self, end: int) -> None:
        """Begin a new segment at position `end` when the active one has its size."""
        # One whose entries were all deleted again keeps its size, and has room nevertheless.
        if self.active.used_bytes >= self._segment_bytes and end != self.active.start:
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
        with self._changing:
            self.segments = [*self.segments, segment]
        sync_directory(self.path)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Let nothing be removed meanwhile."""
        with self._changing:
            yield

    def may_remove_first(self, needed_from: int) -> bool:
        """Return whether `remove_first` would remove a segment now."""
        with self._changing:
            return len(self.segments) > 1 and self.segments[1].start <= needed_from

    def remove_first(self, needed_from: int) -> bool:
        """Remove the oldest segment and its file; return whether there was one to remove. Any thread may call this.

        The segment that is written to stays, and so does one with entries from `needed_from` on, the position of the
        checkpoint: recovery needs them. Its current readers finish: its file is unlinked, and its disk space is freed
        when the last of them closes it.
        """
        with self._changing:
            if not self.may_remove_first(needed_from):
                return False
            first, *rest = self.segments
            keep(self.path, rest[0].start)  # ahead of the deletion
            first.remove_file()
            sync_directory(self.path)  # ahead of the next one: a power cut must not leave a gap
            self.segments = rest
            self.damage.discard(first.start)
        return True

    def mark_damaged(self, start: int, reason: str) -> bool:
        """Mark a segment for repair; return whether it was not marked before. Any thread may call this."""
        with self._changing:
            return any(segment.start == start for segment in self.segments) and self.damage.add(start, reason)

    def forgive(self, start: int) -> None:
        """Remove the mark of a damaged segment: it stays as it is. Any thread may call this."""
        with self._changing:
            self.damage.discard(start)

    def put_in(self, made: Path, start: int) -> bool:
        """Replace the segment with the same start by a repaired one, or put it before all others.

        Any thread may call this. Returns whether it was done: the segment may have been removed meanwhile.
        """
        with self._changing:
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
            self.segments = sorted([segment, *others], key=lambda each: each.start)
            self.damage.discard(start)
        return True

    def truncate(self, position: int) -> None:
        """Delete all entries from a position on. By the thread that writes; there must be no readers meanwhile.

        It begins at the end, so that whatever interrupts it leaves a log in one piece.
        """
        with self._changing:
            # A segment whose dead letters are archived may not be removed yet.
            self.archive_file.ask(lambda archive: archive.truncate(position), None)
            while len(self.segments) > 1 and self.active.start >= position:
                *rest, last = self.segments
                self.segments = rest
                last.remove_file()
                sync_directory(self.path)
                self.damage.discard(last.start)
            self.active.truncate(position)

    # ---- reading ------------------------------------------------------------------------------------

    def begins_at(self, position: int) -> bool:
        """Return whether an entry begins at a log position, or the log ends there."""
        starts = [segment.start for segment in self.segments]
        index = bisect_right(starts, position) - 1
        return index >= 0 and (self.segments[index].begins_at(position) or position == self.end)

    def entry_at(self, position: int) -> bytes:
        """Return the entry that begins at a log position. Raises `CorruptEntry` when none does that can be read."""
        try:
            with closing(self.entries(position)) as entries:
                at, entry = next(entries, (-1, memoryview(b"")))
                if at == position:
                    return bytes(entry)
        except (lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
            raise CorruptEntry(f"the entry at position {position} cannot be read: {error}") from error
        raise CorruptEntry(f"no entry begins at position {position} of the log, which begins at {self.start}")

    def entries(self, position: int = 0) -> Generator[tuple[int, memoryview], None, None]:
        """Yield (position, entry) from a log position on, over all segments."""
        starts = [segment.start for segment in self.segments]
        first = max(bisect_right(starts, position) - 1, 0)
        for segment in self.segments[first:]:
            try:
                yield from segment.entries(position)
            except DAMAGE as error:
                self.report_damage(segment.start, str(error))
                raise

    def read(self, queue: QueueKey, offset: int, limits: ReadLimits) -> ReadResult:
        """Read batches of a queue from an offset on, as `Segment.read` does, over all segments."""
        found: list[tuple[Row, bytes]] = []
        rows = 0
        left: ReadLimits | None = limits
        for segment in self._segments_from(queue, offset):
            if left is None:
                break
            part = self._ask(segment, partial(_read, queue, offset, left), ReadResult([], offset, 0))
            if part.begins_at > offset and self._lacks(queue, offset):
                if rows:
                    break
                raise CorruptEntry(
                    f"{self._where_gap(queue, offset, segment)}: offsets {offset} to {part.begins_at - 1} of queue "
                    f"{self._observer.name_of(queue)} are missing: go "
                    f"on from offset {part.begins_at}; stop the broker and run minimq-broker check",
                    next_offset=part.begins_at,
                )
            found += part.found
            rows += part.rows
            left = left.less(offset, part)
            offset = part.next_offset
            if part.is_cut:
                break
        return ReadResult(found, offset, rows)

    def _where_gap(self, queue: QueueKey, offset: int, found: Segment) -> str:
        """Name the segments that may lack an offset, since they have lost entries."""
        names = [each.path.name for each in self._segments_from(queue, offset) if each.start <= found.start]
        return " or ".join([name for name in names if any(self.path.glob(f"{name}.damaged-*"))] or names)

    def _lacks(self, queue: QueueKey, offset: int) -> bool:
        """Return whether a missing offset should be stored: others before it are, and nothing was archived."""
        archive = self.archive
        if archive is not None and queue.topic_id in archive.topic_ids:
            return False
        first = self.first_offset(queue)
        return first is not None and first <= offset

    def row_at(self, queue: QueueKey, offset: int) -> Row | None:
        """Return the row of the batch that holds `offset` or the next one; None if there is none."""
        return self._first_answer(self._segments_from(queue, offset), lambda segment: segment.row_at(queue, offset))

    def _segments_from(self, queue: QueueKey, offset: int) -> list[Segment]:
        """Return the segments that may hold an offset of a queue and those after it."""
        segments = self._segments_of(queue)
        index = len(segments) - 1
        while index > 0:  # from the newest back: nearly all readers are near the end
            first = segments[index].first_offset(queue)
            if first is not None and first <= offset:
                break
            index -= 1
        return segments[index:]

    def _segments_of(self, queue: QueueKey) -> list[Segment]:
        """Return the segments that may have batches of a queue, the archive first if it may have some."""
        segments = self.segments  # before the archive, which has the batches removed from them
        archive = self.archive
        return segments if archive is None or queue.topic_id not in archive.topic_ids else [archive, *segments]

    def first_offset(self, queue: QueueKey) -> int | None:
        """Return the first offset of a queue that is still stored, None when nothing of it is."""
        return self._first_answer(self._segments_of(queue), lambda segment: segment.first_offset(queue))

    def offset_at(self, queue: QueueKey, timestamp_ms: int) -> int | None:
        """Return the first stored offset of a queue at or after a time (ms since 1970); None if there is none."""
        return self._first_answer(self._segments_of(queue), lambda segment: segment.offset_at(queue, timestamp_ms))

    def offset_from(self, queue: QueueKey, position: int) -> int | None:
        """Return the first stored offset of a queue at or after a log position; None if there is none."""
        return self._first_answer(self._segments_of(queue), lambda segment: segment.offset_from(queue, position))

    def _first_answer(self, segments: list[Segment], question: Callable[[Segment], T | None]) -> T | None:
        for segment in segments:
            found = self._ask(segment, question, None)
            if found is not None:
                return found
        return None

    def _ask(self, segment: Segment, question: Callable[[Segment], T], without: T) -> T:
        """Return the answer of a segment; of an archive that turns out to be damaged, return `without`."""
        if isinstance(segment, DeadLetterArchive):
            return self.archive_file.ask(question, without)
        if self.damage.refuses(segment.start):
            raise SystemBusy(
                f"the segment {segment.path.name} of this slave is damaged and is being repaired from its master",
                retry_after_s=_COME_BACK_S,
            )
        try:
            return question(segment)
        except DAMAGE as error:
            self.report_damage(segment.start, str(error))
            raise


def _read(queue: QueueKey, offset: int, limits: ReadLimits, segment: Segment) -> ReadResult:
    return segment.read(queue, offset, limits)
