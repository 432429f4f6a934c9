"""The due tables of all segments of a log together: what is due next, what waits, and what was recalled."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from operator import itemgetter

from minimq_broker.core.held.delays import NO_KEY, DueKey, DueMark
from minimq_broker.store.entry import batch_at, delay_of, delayed_batch, stored_ms_of
from minimq_broker.store.held.delayed_batches import DelayedBatch, DelayedPage, DelayedRange
from minimq_broker.store.held.due_rows import (
    DueRow,
    due_key_in,
    is_recall,
    key_after,
    key_from,
    position_in_due,
    unpack_due,
)
from minimq_broker.store.lmdb_file import DAMAGE
from minimq_broker.store.log_reader import LogReader
from minimq_broker.store.segment import Segment
from minimq_common.errors import CorruptEntry

#: Key and row as stored, and where they are.
StoredDue = tuple[bytes, bytes, Segment]

#: Rows that are looked at for one page of a listing.
_LISTED_ROWS = 20_000
#: Recalled batches that are looked at before a segment is said to have one that waits.
_LOOKED_AT = 1_000


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

    def walk(self, mark: DueKey, before_ms: int, from_ms: int = 0) -> Iterator[StoredDue]:
        """Yield the rows behind a mark that are due before a time, by key; that of a recall ahead of its batch."""
        start, end = max(key_after(mark), key_from(from_ms)), key_from(before_ms)
        parts = [
            self._rows(segment, start, end)
            for segment in self._log.segments
            if (key := segment.due.next_key(mark)) is not None and key.due_ms < before_ms
        ]
        return parts[0] if len(parts) == 1 else merge(*parts, key=itemgetter(0))

    def _rows(self, segment: Segment, start: bytes, end: bytes) -> Iterator[StoredDue]:
        try:
            for key, value in segment.due.stored_from(start):
                if key >= end:
                    return
                yield key, value, segment
        except DAMAGE as error:
            self._log.report_damage(segment.start, str(error))
            raise CorruptEntry(
                f"the delayed batches of {segment.path.name} cannot be read ({error}): restart the broker, which "
                "repairs the file"
            ) from error

    def find(self, key: DueKey) -> DueRow | None:
        """Return the row of a delayed batch; None when there is none that can be read."""
        for segment in self._from(key.id)[:1]:
            stored = segment.due.get(key)
            if stored is not None:
                return row_in(segment, *stored)
        return None

    def is_recalled(self, key: DueKey, mark: DueKey) -> bool:
        """Return whether there is a recall of a batch."""
        return self._recall_of(key, mark) is not None

    def _recall_of(self, key: DueKey, mark: DueKey) -> tuple[bytes, bytes] | None:
        for segment in self._from(key.id):
            first = segment.due.next_key(mark) if key > mark else key
            if first is not None and first <= key and (stored := segment.due.get_recall(key)) is not None:
                return stored
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
        stored = self._recall_of(key, mark)
        return stored is not None and position_in_due(*stored) < self._log.saved_to

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
        for looked, (key, _) in enumerate(segment.due.stored_from(key_after(mark))):
            if not is_recall(key) and (looked > _LOOKED_AT or not self._is_recalled_for_good(due_key_in(key), mark)):
                return True
        return False

    def page(self, topic_id: int, wanted: DelayedRange, published: DueMark) -> DelayedPage:
        """Return some delayed batches of a topic that are not due. Raises `CorruptEntry`."""
        found: list[DelayedBatch] = []
        before_ms = 1 << 63 if wanted.before_ms is None else wanted.before_ms
        size = looked = 0
        recalled = last = NO_KEY
        for stored_key, value, segment in self.walk(max(published.key, wanted.after), before_ms, wanted.from_ms):
            if looked >= _LISTED_ROWS or len(found) >= wanted.max_batches or size >= wanted.max_bytes:
                return DelayedPage(found, last)
            looked += 1
            last = due_key_in(stored_key)
            if is_recall(stored_key):
                recalled = last
                continue
            if published.covers(last):
                continue
            row = row_in(segment, stored_key, value)
            if (last == recalled) is not wanted.recalled or row is None or row.topic_id != topic_id:
                continue
            entry = segment.entry_at(last.id)
            if entry is not None:
                data = entry[batch_at(entry) :]
                stored_ms = stored_ms_of(memoryview(entry))
                found.append(DelayedBatch(last, row.queue_id, row.messages, stored_ms, row.is_recallable, data))
                size += len(data)
        return DelayedPage(found)


def row_in(segment: Segment, key: bytes, value: bytes) -> DueRow | None:
    """Return the row of a delayed batch as stored; of a damaged one by its entry, None when that is damaged as well."""
    try:
        row = unpack_due(key, value)
        return row if isinstance(row, DueRow) else None
    except CorruptEntry:
        due = due_key_in(key)
        entry = segment.entry_at(due.id) or b""
        try:
            done = delayed_batch(entry, due)[1]
        except CorruptEntry:
            return None
        return DueRow(due, len(entry), done.messages, done.place.topic_id, done.place.queue_id, done.is_recallable)
