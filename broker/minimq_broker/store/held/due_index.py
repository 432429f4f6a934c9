"""The due tables of all segments of a log together: what is due next, what waits, and what was recalled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter

from minimq_broker.core.held.delays import NO_KEY, BatchDelayed, DueKey, DueMark
from minimq_broker.store.entry import delay_of, delayed_batch, effect
from minimq_broker.store.held.due_table import DueRow, key_after, key_from
from minimq_broker.store.lmdb_file import DAMAGE
from minimq_broker.store.log_reader import LogReader
from minimq_broker.store.segment import Segment
from minimq_common.errors import CorruptEntry, StoreError

#: Rows that are looked at for one page of a listing.
_LISTED_ROWS = 20_000
#: Recalled batches that are looked at before a segment is said to have one that waits.
_LOOKED_AT = 1_000


@dataclass(frozen=True, slots=True)
class DelayedBatch:
    """A batch that waits, as it is listed."""

    key: DueKey
    queue_id: int
    count: int
    #: When it was stored, in ms since 1970.
    stored_ms: int
    #: It may be taken back.
    is_recallable: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class DelayedRange:
    """Delayed batches of a topic, by when they are due."""

    #: Due from this time on, in ms since 1970.
    from_ms: int = 0
    #: Due before this time; None: at any time.
    before_ms: int | None = None
    #: Only those behind this key.
    after: DueKey = NO_KEY
    #: The maximum number of batches.
    max_batches: int = 1_000
    max_bytes: int = 1 << 20
    recalled: bool = False


@dataclass(frozen=True, slots=True)
class DelayedPage:
    """Some delayed batches, in the order in which they are due."""

    batches: list[DelayedBatch]
    #: Where the next page goes on; None when there are no more.
    next: DueKey | None = None


class DueIndex:
    """Looks into the due tables of a log. Any thread may; nothing is kept in memory but the next key of each segment.

    A mark says up to which key delayed batches are published.
    """

    def __init__(self, log: LogReader) -> None:
        self._log = log

    def next_key(self, mark: DueKey) -> DueKey | None:
        """Return the first key behind a mark; None if there is none. It may be that of a recalled batch."""
        found = (segment.due.next_key(mark) for segment in self._log.segments)
        return min((key for key in found if key is not None), default=None)

    def walk(self, mark: DueKey, before_ms: int, from_ms: int = 0) -> Iterator[tuple[DueRow, Segment]]:
        """Yield the rows behind a mark that are due before a time, by key; that of a recall ahead of its batch."""
        start, end = max(key_after(mark), key_from(from_ms)), key_from(before_ms)
        parts = [
            self._rows(segment, start, end)
            for segment in self._log.segments
            if (key := segment.due.next_key(mark)) is not None and key.due_ms < before_ms
        ]
        return parts[0] if len(parts) == 1 else merge(*parts, key=itemgetter(0))

    def _rows(self, segment: Segment, start: bytes, end: bytes) -> Iterator[tuple[DueRow, Segment]]:
        try:
            for row in segment.due.rows(start):
                if row.key >= end:
                    return
                yield row, segment
        except DAMAGE as error:
            self._log.report_damage(segment.start, str(error))
            raise CorruptEntry(
                f"the delayed batches of {segment.path.name} cannot be read ({error}): restart the broker, which "
                "repairs the file"
            ) from error

    def find(self, key: DueKey) -> BatchDelayed | None:
        """Return what is known of a delayed batch by its header; None when there is none that can be read."""
        return next((batch_in(segment, key) for segment in self._from(key.id)[:1]), None)

    def is_recalled(self, key: DueKey, mark: DueKey) -> bool:
        """Return whether there is a recall of a batch."""
        return self._recall_of(key, mark) is not None

    def _recall_of(self, key: DueKey, mark: DueKey) -> DueRow | None:
        for segment in self._from(key.id):
            first = segment.due.next_key(mark) if key > mark else key
            if first is not None and first <= key and (row := segment.due.recall_of(key)) is not None:
                return row
        return None

    def _from(self, position: int) -> list[Segment]:
        segments = self._log.segments
        index = len(segments) - 1
        while index > 0 and segments[index].start > position:
            index -= 1
        return segments[index:]

    def needs(self, position: int, entry: memoryview, mark: DueKey) -> bool:
        """Return whether the entry of a delayed batch at a log position is needed. Raises `CorruptEntry`.

        It is while the batch waits: it is neither published, by the saved mark, nor recalled for good.
        """
        key = DueKey(delay_of(entry, position)[0], position)
        return key > mark and not self._is_recalled_for_good(key, mark)

    def _is_recalled_for_good(self, key: DueKey, mark: DueKey) -> bool:
        row = self._recall_of(key, mark)
        return row is not None and row.position < self._log.saved_to

    def waiting_from(self, mark: DueKey) -> int | None:
        """Return where the first segment with a batch that waits starts; None when there is none."""
        for segment in self._log.segments:
            if self._has_waiting(segment, mark):
                return segment.start
        return None

    def keeps_first(self, mark: DueKey) -> bool:
        """Return whether the first segment has a batch that waits, and is not the only one."""
        segments = self._log.segments
        return len(segments) > 1 and self._has_waiting(segments[0], mark)

    def _has_waiting(self, segment: Segment, mark: DueKey) -> bool:
        if segment.due.next_key(mark) is None:
            return False
        for looked, row in enumerate(segment.due.rows(key_after(mark))):
            if not row.is_recall and (looked > _LOOKED_AT or not self._is_recalled_for_good(row.due, mark)):
                return True
        return False

    def page(self, topic_id: int, wanted: DelayedRange, published: DueMark) -> DelayedPage:
        """Return some delayed batches of a topic that are not due. Raises `CorruptEntry`."""
        found: list[DelayedBatch] = []
        before_ms = 1 << 63 if wanted.before_ms is None else wanted.before_ms
        size = 0
        recalled = last = NO_KEY
        walk = self.walk(max(published.key, wanted.after), before_ms, wanted.from_ms)
        for looked, (row, segment) in enumerate(walk):
            if looked >= _LISTED_ROWS or len(found) >= wanted.max_batches or size >= wanted.max_bytes:
                return DelayedPage(found, last)
            last = row.due
            if row.is_recall:
                recalled = last
                continue
            if published.covers(last) or (last == recalled) is not wanted.recalled or row.counted[0] != topic_id:
                continue
            try:
                data, batch = delayed_batch(segment.entry_at(last.id) or b"", last)
            except CorruptEntry:
                continue
            place = batch.place
            found.append(
                DelayedBatch(last, place.queue_id, batch.messages, place.stored_ms, batch.is_recallable, bytes(data))
            )
            size += len(data)
        return DelayedPage(found)


def batch_in(segment: Segment, key: DueKey) -> BatchDelayed | None:
    """Return what the header of a delayed batch in a segment says, verified; the batch itself may be large."""
    with suppress(StoreError), closing(segment.entries(key.id)) as entries:
        position, entry = next(entries, (-1, memoryview(b"")))
        done = effect(entry, key.id) if position == key.id else None
        if isinstance(done, BatchDelayed) and done.key == key:
            return done
    return None
