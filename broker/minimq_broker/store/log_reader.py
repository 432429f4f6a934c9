"""Reads across the segments of a CommitLog."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from minimq_broker.core.state import QueueKey
from minimq_broker.store.lmdb_file import DAMAGE
from minimq_broker.store.rows import ReadLimits, ReadResult, Row
from minimq_broker.store.segment import Segment
from minimq_broker.store.upkeep.log_marks import DamageMarks
from minimq_common.errors import CorruptEntry, SystemBusy

T = TypeVar("T")
_START_OF = attrgetter("start")


class LogReader:
    """Reads the segments of one log. Any thread may read.

    Each read works on the list of segments at its begin, even if segments are added, rewritten or removed meanwhile.
    """

    damage: DamageMarks

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Returns the display name of a queue for errors. Called on any thread, like `report_damage`.
        self.name_of: Callable[[QueueKey], str] = str
        #: Receives the start of a damaged segment, and the reason.
        self.report_damage: Callable[[int, str], None] = lambda start, reason: None
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
        self.truncations = 0

    def _use(self, segments: list[Segment]) -> None:
        self.segments = segments
        self.complete_from = max((self.start, *(segment.rewritten_to for segment in segments)))
        self.cuts += 1

    def show_from(self, floors: Mapping[QueueKey, int]) -> None:
        """Hide the messages of some queues before an offset."""
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
        """Position after the last entry."""
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

    def read(self, queue: QueueKey, offset: int, limits: ReadLimits) -> ReadResult:
        """Read batches of a queue from an offset on, as `Segment.read` does, over all segments."""
        offset = max(offset, self.floors.get(queue, 0))
        found: list[tuple[Row, bytes]] = []
        due_ms: dict[int, int] = {}
        rows = 0
        left: ReadLimits | None = limits
        for segment in self._segments_from(queue, offset):
            if left is None:
                break
            part = self._ask(segment, partial(Segment.read, queue=queue, offset=offset, limits=left))
            if part.begins_at > offset and self._lacks(queue, offset):
                if rows:
                    break
                raise CorruptEntry(
                    f"{self._where_gap(queue, offset, segment)}: offsets {offset} to {part.begins_at - 1} of queue "
                    f"{self.name_of(queue)} are missing: go "
                    f"on from offset {part.begins_at}; stop the broker and run minimq-broker check",
                    next_offset=part.begins_at,
                )
            found += part.found
            due_ms.update(part.due_ms)
            rows += part.rows
            left = left.less(offset, part)
            offset = part.next_offset
            if part.is_cut:
                break
        return ReadResult(found, offset, rows, due_ms=due_ms)

    def _where_gap(self, queue: QueueKey, offset: int, found: Segment) -> str:
        names = [each.path.name for each in self._segments_from(queue, offset) if each.start <= found.start]
        return " or ".join([name for name in names if any(self.path.glob(f"{name}.damaged-*"))] or names)

    def _lacks(self, queue: QueueKey, offset: int) -> bool:
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
        found = self._first_answer(self.segments, lambda segment: segment.first_offset(queue))
        return self._shown(queue, found)

    def offset_at(self, queue: QueueKey, timestamp_ms: int) -> int | None:
        """Return the first visible offset of a queue stored at or after a time (ms since 1970), or None."""
        return self._shown(queue, self._first_answer(self.segments, lambda each: each.offset_at(queue, timestamp_ms)))

    def offset_from(self, queue: QueueKey, position: int) -> int | None:
        """Return the first visible offset of a queue at or after a log position, or None."""
        return self._shown(queue, self._first_answer(self.segments, lambda each: each.offset_from(queue, position)))

    def _first_answer(self, segments: list[Segment], question: Callable[[Segment], T | None]) -> T | None:
        for segment in segments:
            found = self._ask(segment, question)
            if found is not None:
                return found
        return None

    def _ask(self, segment: Segment, question: Callable[[Segment], T]) -> T:
        if self.damage.refuses(segment.start):
            raise SystemBusy(
                f"the segment {segment.path.name} of this slave is damaged and is being repaired from its master"
            )
        try:
            return question(segment)
        except DAMAGE as error:
            self.report_damage(segment.start, str(error))
            raise
