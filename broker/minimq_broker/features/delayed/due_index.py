"""The index rows of all segments of a log: finds batches that are due, that wait, and that were recalled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter

from minimq_broker.features.delayed.due_rows import DueRow, due_row, key_after, key_from, key_in, recall_key
from minimq_broker.features.delayed.table import (
    NAME,
    NO_KEY,
    TAG,
    BatchesRecalled,
    DelaysSetBack,
    DueMark,
    is_recallable,
)
from minimq_broker.features.feature import Pins
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.entry import effect, held_batch
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_broker.log.segment import Segment
from minimq_broker.state.queue_ends import BatchHeld, HeldKey
from minimq_broker.state.state import Effect
from minimq_common.errors import CorruptEntry, StoreError

#: Rows that are examined for one page of a listing.
_MAX_PAGE_ROWS = 20_000
#: Recalled batches that are examined before a segment is assumed to have a waiting one.
_LOOKED_AT = 1_000


@dataclass(frozen=True, slots=True)
class DueEntry:
    key: HeldKey
    queue_id: int
    #: Number of messages.
    count: int
    stored_ms: int
    is_recallable: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class DelayedRange:
    #: Due at or after this time, in ms since 1970.
    from_ms: int = 0
    #: Due before this time; None: no limit.
    before_ms: int | None = None
    after: HeldKey = NO_KEY
    max_batches: int = 1_000
    max_bytes: int = 1 << 20
    #: List recalled batches instead of waiting ones.
    recalled: bool = False


@dataclass(frozen=True, slots=True)
class DelayedPage:
    """Some delayed batches, by due time."""

    batches: list[DueEntry]
    #: `DelayedRange.after` of the next page; None if this is the last one.
    next: HeldKey | None = None


class DueIndex:
    """Searches the index rows of a log. Thread-safe; keeps only the next key of each segment in memory."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def next_key(self, mark: HeldKey) -> HeldKey | None:
        """Return the first key after a mark, possibly of a recalled batch; None if there is none."""
        found = (next_key(segment, mark) for segment in self._log.segments)
        return min((key for key in found if key is not None), default=None)

    def walk(self, mark: HeldKey, before_ms: int, from_ms: int = 0) -> Iterator[tuple[DueRow, Segment]]:
        """Yield the rows after a mark that are due before a time, by key. A recall comes before its batch."""
        start, end = max(key_after(mark), key_from(from_ms)), key_from(before_ms)
        parts = [
            self._rows(segment, start, end)
            for segment in self._log.segments
            if (key := next_key(segment, mark)) is not None and key.until_ms < before_ms
        ]
        return parts[0] if len(parts) == 1 else merge(*parts, key=itemgetter(0))

    def _rows(self, segment: Segment, start: bytes, end: bytes) -> Iterator[tuple[DueRow, Segment]]:
        try:
            for row in segment.indexes[NAME].rows(start):
                if row.key >= end:
                    return
                yield due_row(row), segment
        except DAMAGE as error:
            self._log.report_damage(segment.start, str(error))
            raise CorruptEntry(
                f"the delayed batches of {segment.path.name} cannot be read ({error}): stop the broker and run "
                "minimq-broker check"
            ) from error

    def find(self, key: HeldKey) -> BatchHeld | None:
        """Return the effect of a delayed batch, from its header alone; None if there is no readable one."""
        return next((batch_in(segment, key) for segment in self._from(key.position)[:1]), None)

    def recall_of(self, key: HeldKey, mark: HeldKey) -> DueRow | None:
        """Return the row of the recall of a batch, None if it was not recalled."""
        for segment in self._from(key.position):
            first = next_key(segment, mark) if key > mark else key
            if first is not None and first <= key and (row := segment.indexes[NAME].get(recall_key(key))) is not None:
                return due_row(row)
        return None

    def _from(self, position: int) -> list[Segment]:
        segments = self._log.segments
        index = len(segments) - 1
        while index > 0 and segments[index].start > position:
            index -= 1
        return segments[index:]

    def needs(self, key: HeldKey, mark: HeldKey) -> bool:
        """Return whether the entry of a delayed batch has to be kept: it is neither published nor recalled for good."""
        return key > mark and not self._is_recalled_for_good(key, mark)

    def _is_recalled_for_good(self, key: HeldKey, mark: HeldKey) -> bool:
        row = self.recall_of(key, mark)
        return row is not None and row.position < self._log.saved_to

    def keeps_first(self, mark: HeldKey) -> bool:
        """Return whether a waiting batch keeps the first segment from being deleted; False if it is the only one."""
        segments = self._log.segments
        return len(segments) > 1 and self.has_waiting(segments[0], mark)

    def has_waiting(self, segment: Segment, mark: HeldKey) -> bool:
        """Return whether a segment has a waiting batch, or so many recalled ones that it may have."""
        if next_key(segment, mark) is None:
            return False
        for looked, row in enumerate(map(due_row, segment.indexes[NAME].rows(key_after(mark)))):
            if row.is_wait and (looked > _LOOKED_AT or not self._is_recalled_for_good(row.due, mark)):
                return True
        return False

    def page(self, topic_id: int, wanted: DelayedRange, published: DueMark) -> DelayedPage:
        """Return a page of delayed batches of a topic that are not published. Raises `CorruptEntry`."""
        found: list[DueEntry] = []
        before_ms = 1 << 63 if wanted.before_ms is None else wanted.before_ms
        size = 0
        recalled = last = NO_KEY
        walk = self.walk(max(published.key, wanted.after), before_ms, wanted.from_ms)
        for looked, (row, segment) in enumerate(walk):
            if looked >= _MAX_PAGE_ROWS or len(found) >= wanted.max_batches or size >= wanted.max_bytes:
                return DelayedPage(found, last)
            last = row.due
            if not row.is_wait:
                recalled = last
                continue
            if published.covers(last) or (last == recalled) is not wanted.recalled or row.counted[0] != topic_id:
                continue
            try:
                data, batch = held_batch(segment.entry_at(last.position) or b"", TAG, last)
            except CorruptEntry:
                continue
            place = batch.place
            found.append(
                DueEntry(last, place.queue_id, batch.messages, place.stored_ms, is_recallable(batch), bytes(data))
            )
            size += len(data)
        return DelayedPage(found)


class DelayPins(Pins):
    """The waiting batches, and recalls until their batch is due. `mark` is that of the saved state."""

    def __init__(self, log: CommitLog, mark: HeldKey) -> None:
        self._index, self._mark = DueIndex(log), mark

    def keeps(self, effect: Effect, position: int) -> bool:
        if isinstance(effect, BatchHeld):
            return effect.tag == TAG and self._index.needs(effect.key, self._mark)
        if isinstance(effect, BatchesRecalled):
            return any((each.due_ms, each.id) > self._mark for each in effect.batches)
        return isinstance(effect, DelaysSetBack)  # without it, later batches would seem to be published out of order

    def bytes_in(self, segment: Segment) -> int:
        return segment.used_bytes // 2 if self._index.has_waiting(segment, self._mark) else 0


def batch_in(segment: Segment, key: HeldKey) -> BatchHeld | None:
    """Return the effect of a delayed batch in a segment. Verifies the header only, as the batch may be large."""
    with suppress(StoreError), closing(segment.entries(key.position)) as entries:
        position, entry = next(entries, (-1, memoryview(b"")))
        done = effect(entry, key.position) if position == key.position else None
        if isinstance(done, BatchHeld) and (done.tag, done.key) == (TAG, key):
            return done
    return None


def next_key(segment: Segment, mark: HeldKey) -> HeldKey | None:
    """Return the first key after a mark, of a batch or a recall; None if there is none."""
    found = segment.indexes[NAME].next_key(key_after(mark))
    return None if found is None else key_in(found)
