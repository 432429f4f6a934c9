"""The CommitLog: a sequence of segments that together hold everything durable of a broker.

A log position is the size in bytes of all entries before it: positions only grow, and their difference is a size. The
name of a segment is the position at which it starts. Only the last segment is written. The others never change, but
adjacent ones may be rewritten: replaced by one file with the entries that are still needed.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import lmdb

from minimq_broker.backup.crash_note import startup_verify_s
from minimq_broker.features.feature import IndexRow
from minimq_broker.log.file_checksum import mark_damaged
from minimq_broker.log.lmdb_file import DAMAGE, lock_file, remove_lmdb
from minimq_broker.log.rows import Reading, ReadLimits, Row
from minimq_broker.log.segment import Segment, segment_files
from minimq_broker.log.start_check import check_at_start
from minimq_broker.state.state import QueueKey
from minimq_common.errors import CorruptEntry, StoreError
from minimq_common.files.synced_files import sync_directory

T = TypeVar("T")
_START_OF = attrgetter("start")


class CommitLog:
    """The segments of one broker. One thread writes and rolls; any thread may read, and remove the oldest segment.

    Each read works on the list of segments at its begin, even if segments are added, rewritten or removed meanwhile.
    """

    def __init__(
        self,
        path: Path,
        segment_bytes: int,
        name_of: Callable[[QueueKey], str] = str,
        *,
        readonly: bool = False,
        without: Collection[str] = (),
        start: int = 0,
    ) -> None:
        self.path = path
        #: Returns the display name of a queue for errors. Called on any thread.
        self._name_of = name_of
        #: Segments that a reader could not read, by start, with the error. The scrub verifies them.
        self.suspects: dict[int, str] = {}
        #: Replaced as a whole, never changed in place once the log is open.
        self.segments: list[Segment] = []
        #: Log position from which on no rewriting has removed entries.
        self.complete_from = 0
        #: Log position of the checkpoint.
        self.saved_to = 0
        #: First visible offset of queues, see `show_from`.
        self.floors: Mapping[QueueKey, int] = {}
        #: Grows whenever first offsets of queues may have changed.
        self.cuts = 0
        #: Cached first offsets of queues. Replaced as a whole, so that slow readers put nothing outdated into it.
        self._firsts: dict[QueueKey, int] = {}
        self._segment_bytes = segment_bytes
        #: Guards the list of segments: no segment is added, replaced or removed while it is held.
        self.kept = threading.RLock()
        #: The reason by the start of each sealed segment that is known to be damaged. Replaced as a whole.
        self.damage: Mapping[int, str] = {}
        try:
            files = segment_files(path, without)
            if not readonly:
                files, self.damage = check_at_start(files, startup_verify_s(path.parent))
            for file in files:
                self.segments.append(Segment(file, int(file.stem), segment_bytes, readonly=readonly))
            self._use(_without_replaced(self.segments, readonly=readonly))
            if not self.segments and not readonly:
                self._add(start)
            if not readonly:
                for made in path.glob("*.new*"):  # left over from an interrupted rewriting
                    made.unlink()
        except BaseException:
            self.close()
            raise
        for segment in self.segments[:-1]:
            segment.sealed = True

    def close(self) -> None:
        for segment in self.segments:
            segment.close()

    @property
    def disk_bytes(self) -> int:
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
        self,
        end: int,
        entries: list[tuple[int, bytes]],
        rows: list[tuple[QueueKey, Row]],
        index_rows: Sequence[IndexRow] = (),
    ) -> None:
        """Append a group of entries and their rows, and sync. `end` is where the log ends now."""
        active = self.segments[-1]
        # A segment whose entries were all truncated keeps its file size, but has room.
        if active.used_bytes >= self._segment_bytes and end != active.start:
            self.roll(end)
        try:
            self.segments[-1].write(entries, rows, index_rows)
        except lmdb.MapFullError:
            self.roll(end)
            self.segments[-1].write(entries, rows, index_rows)

    def roll(self, end: int) -> None:
        """Seal the active segment and begin the next one at position `end`."""
        sealed = self.active
        if end == sealed.start:
            raise StoreError(f"one group of entries does not fit into a segment of {self._segment_bytes} bytes")
        self._add(end)
        sealed.sealed = True

    def _add(self, start: int) -> None:
        file = self.path / f"{start:020d}.mdb"
        with ExitStack() as undo:
            undo.callback(remove_lmdb, file)
            segment = Segment(file, start, self._segment_bytes)
            undo.callback(segment.close)
            sync_directory(self.path)  # before its use: otherwise a power failure could delete it with its entries
            undo.pop_all()
        with self.kept:
            self._use([*self.segments, segment])

    def remove_first(self, needed_from: int) -> bool:
        """Remove the oldest segment and its file; return whether there was one to remove. Any thread may call this.

        Keeps the active segment, and any with entries at or after `needed_from`, which recovery needs. The file is
        unlinked: current readers can finish, and the disk space is freed when the last of them closes it.
        """
        with self.kept:
            first, *rest = self.segments
            if not rest or rest[0].start > needed_from:
                return False
            first.remove_file()
            for file in segment_files(self.path):  # damaged ones that are not served
                if int(file.stem) < rest[0].start:
                    remove_lmdb(file)
            sync_directory(self.path)  # before the next deletion: a power failure must not leave a gap
            self._use(rest)
            self.damage = {start: reason for start, reason in self.damage.items() if start >= rest[0].start}
        return True

    def report_damage(self, start: int, reason: str) -> None:
        """Note that a segment could not be read, so that the scrub verifies it. Any thread may call this."""
        self.suspects.setdefault(start, reason)

    def mark_damaged(self, start: int, reason: str) -> bool:
        """Mark a segment as damaged, also for later starts; return False if it is gone or already marked.

        Any thread may call this.
        """
        with self.kept:
            found = next((segment for segment in self.segments if segment.start == start), None)
            if found is None or start in self.damage:
                return False
            with suppress(OSError):  # the next verification finds it again
                mark_damaged(found.path)
            self.damage = {**self.damage, start: reason}
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
            if not is_there or any(segment.start in self.damage for segment in former):
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
        with self.kept:
            while len(self.segments) > 1 and self.active.start >= position:
                *rest, last = self.segments
                if last.start == position and rest[-1].rewritten_to:
                    break  # a rewritten segment cannot be appended to: keep this one, and empty it
                self._use(rest)
                last.remove_file()
                sync_directory(self.path)
            self.damage = {start: reason for start, reason in self.damage.items() if start < position}
            self.active.truncate(position)
            self._firsts, self.floors = {}, {}  # the next batches may get the offsets of hidden ones

    def _use(self, segments: list[Segment]) -> None:
        self.segments, self._firsts = segments, {}
        self.complete_from = max((self.start, *(segment.rewritten_to for segment in segments)))
        self.cuts += 1

    def show_from(self, floors: Mapping[QueueKey, int]) -> None:
        if floors != self.floors:
            self.floors = floors
            self.cuts += 1

    def _shown(self, queue: QueueKey, offset: int | None) -> int | None:
        return None if offset is None else max(offset, self.floors.get(queue, 0))

    @property
    def start(self) -> int:
        """Position of the first entry that is still stored."""
        return self.segments[0].start if self.segments else 0

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0

    def begins_at(self, position: int) -> bool:
        """Return whether an entry begins at a log position, or the log ends there."""
        segment = self._segment_of(position)
        return segment is not None and (segment.entry_at(position) is not None or position == self.end)

    def _segment_of(self, position: int) -> Segment | None:
        segments = self.segments  # another thread may replace the list
        index = bisect_right(segments, position, key=_START_OF) - 1
        return segments[index] if index >= 0 else None

    def next_position(self, position: int) -> int:
        """Return the log position of the next stored entry at or after `position`, skipping gaps left by rewritings."""
        if position >= self.complete_from:
            return position
        with closing(self.entries(position)) as entries:
            found, _ = next(entries, (self.complete_from, None))
        return min(found, self.complete_from)

    def entry_at(self, position: int) -> bytes:
        """Return the entry that begins at a log position. Raises `CorruptEntry` if none does, or it is unreadable."""
        segment = self._segment_of(position)
        if segment is not None:
            try:
                if (entry := segment.entry_at(position)) is not None:
                    return entry
            except DAMAGE as error:
                self.report_damage(segment.start, str(error))
                raise CorruptEntry(f"the entry at position {position} cannot be read: {error}") from error
        raise CorruptEntry(f"no entry begins at position {position} of the log, which begins at {self.start}")

    def entries(self, position: int = 0) -> Generator[tuple[int, memoryview], None, None]:
        """Yield (position, entry) from a log position on, over all segments."""
        segments = self.segments  # as in `_segment_of`
        first = max(bisect_right(segments, position, key=_START_OF) - 1, 0)
        for segment in segments[first:]:
            try:
                yield from segment.entries(position)
            except DAMAGE as error:
                self.report_damage(segment.start, str(error))
                raise

    def read(self, queue: QueueKey, offset: int, limits: ReadLimits) -> Reading:
        """Read batches of a queue, from the one that holds `offset` or the next one, over all segments."""
        reading = Reading(limits, max(offset, self.floors.get(queue, 0)))
        for segment in self._segments_from(queue, reading.next_offset):
            try:
                segment.read(queue, reading, self.lacks)
            except DAMAGE as error:
                behind = error.next_offset if isinstance(error, CorruptEntry) else 0
                if not behind:  # not just missing
                    self.report_damage(segment.start, str(error))
                if reading.rows:
                    break
                behind = behind or reading.at + 1
                raise CorruptEntry(
                    f"{segment.path.name}: queue {self._name_of(queue)} cannot be read at offset {reading.start} "
                    f"({error}): go on from offset {behind}; stop the broker and run minimq-broker check",
                    next_offset=behind,
                ) from error
            if reading.is_over:
                break
        return reading

    def lacks(self, queue: QueueKey, offset: int) -> bool:
        """Return whether the batch at an offset that was stored is missing, though earlier ones are there."""
        first = self.first_offset(queue)
        return first is not None and first <= offset and not self.may_lack(queue, offset)

    def may_lack(self, queue: QueueKey, offset: int) -> bool:
        """Return whether a rewriting may have removed the batch at an offset of a queue."""
        if self.complete_from == self.start:
            return False
        for segment in reversed(self.segments):
            before = self._ask(segment, lambda segment: segment.row_before(queue, offset))
            if before is not None:
                return before.position < self.complete_from
        return True

    def row_at(self, queue: QueueKey, offset: int) -> Row | None:
        """Return the row of the batch that holds `offset` or the next one; None if there is none."""
        shown = max(offset, self.floors.get(queue, 0))
        return self._first_answer(self._segments_from(queue, shown), lambda segment: segment.row_at(queue, shown))

    def _segments_from(self, queue: QueueKey, offset: int) -> list[Segment]:
        segments = self.segments
        index = len(segments) - 1
        while index > 0:  # newest first: nearly all readers are near the end
            first = segments[index].first_offset(queue)
            if first is not None and first <= offset:
                break
            index -= 1
        return segments[index:]

    def first_offset(self, queue: QueueKey) -> int | None:
        """Return the first visible offset of a queue that is still stored, None if there is none."""
        firsts = self._firsts  # first: another thread may replace both
        found = firsts.get(queue)
        if found is None:
            found = self._first_answer(self.segments, lambda segment: segment.first_offset(queue))
            if found is not None:
                firsts[queue] = found
        return self._shown(queue, found)

    def first_offset_of(self, queue: QueueKey, is_it: Callable[[Row], bool]) -> int | None:
        """Return the first visible offset of a queue, as `Segment.first_offset_of` does, over all segments."""
        return self._shown(queue, self._first_answer(self.segments, lambda each: each.first_offset_of(queue, is_it)))

    def _first_answer(self, segments: list[Segment], question: Callable[[Segment], T | None]) -> T | None:
        for segment in segments:
            found = self._ask(segment, question)
            if found is not None:
                return found
        return None

    def _ask(self, segment: Segment, question: Callable[[Segment], T]) -> T:
        try:
            return question(segment)
        except DAMAGE as error:
            self.report_damage(segment.start, str(error))
            raise


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
