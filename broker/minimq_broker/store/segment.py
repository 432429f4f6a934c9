"""One segment: an LMDB file with a part of the CommitLog and the ConsumeQueue rows of its batches.

All tables are written in one transaction, so after a crash they still match:

    log             position -> entry
    consumequeue    (topic id, queue id, last offset of the batch) -> `Row`
    due             rows of delayed batches, see `DueTable`

A rewritten segment (see `rewriting.py`) lacks some entries, so a mark stores the log position at which it ends.

Rows are keyed by the *last* offset: a single seek to the first row at or after n finds the batch that holds offset n.
Store times never go back within a queue: a binary search over its rows finds the first batch at or after a time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import lmdb

from minimq_broker.core.state import QueueKey
from minimq_broker.store.entry import (
    HEADER_BYTES,
    KIND_AT,
    EntryKind,
    batch_at,
    held_key_of,
    opened,
    read_header,
    stands_at,
)
from minimq_broker.store.held.due_table import DueRow, due_rows_of
from minimq_broker.store.lmdb_file import DAMAGE
from minimq_broker.store.rows import (
    ROW_KEY,
    ReadLimits,
    ReadResult,
    Row,
    check_row,
    count_in,
    may_hold,
    position_in,
    row_of,
    unpack_row,
)
from minimq_broker.store.segment_file import SegmentFile
from minimq_common.errors import CorruptEntry

_POSITION = struct.Struct(">Q")
_MAX_OFFSET = (1 << 64) - 1


def rows_of(
    entries: Sequence[tuple[int, bytes]], *, verified: bool = False
) -> tuple[list[tuple[QueueKey, Row]], list[DueRow]]:
    """Decode entries and return their index rows and due rows. Raises `StoreError`."""
    rows: list[tuple[QueueKey, Row]] = []
    due: list[DueRow] = []
    for position, data in entries:
        header, about, effect = opened(data, position, verified=verified)
        due += due_rows_of(effect, position)
        if about is not None:
            rows.append((header.queue, row_of(header, about, position, len(data))))
    return rows, due


class Segment(SegmentFile):
    """One file of the CommitLog. One thread writes; any thread reads."""

    def __init__(
        self, path: Path, start: int, segment_bytes: int, *, readonly: bool = False, verified: bool = False
    ) -> None:
        super().__init__(path, start, segment_bytes, readonly=readonly, verified=verified)
        #: Cache of `first_offset`, used once the segment is sealed.
        self._first: dict[QueueKey, int | None] = {}
        #: Cache of `newest_ms`: the last position it examined, and its result.
        self._newest: tuple[int, int | None] = (-1, None)
        self.sealed = False

    @property
    def end(self) -> int:
        """Log position after the last entry."""
        if self.rewritten_to:
            return self.rewritten_to
        with self._reading(self._log) as txn, txn.cursor() as cursor:
            if not cursor.last():
                return self.start
            return int(_POSITION.unpack(cursor.key())[0]) + len(cursor.value())

    def newest_ms(self) -> int | None:
        """Return when the last batch was written, in ms since 1970; None without batches. Raises `CorruptEntry`."""
        seen, newest = self._newest
        with self._reading(self._log) as txn, txn.cursor() as cursor:
            found = more = cursor.last()
            last = int(_POSITION.unpack(cursor.key())[0]) if found else seen
            while more and (position := int(_POSITION.unpack(cursor.key())[0])) > seen:  # many facts may follow it
                header = read_header(cursor.value(), position)
                if header.kind != EntryKind.FACT:
                    newest = header.stored_ms
                    break
                more = cursor.prev()
        self._newest = last, newest
        return newest

    # ---- writes -------------------------------------------------------------------------------------

    def put(
        self,
        txn: lmdb.Transaction,
        entries: list[tuple[int, bytes]],
        rows: list[tuple[QueueKey, Row]],
        due: Sequence[DueRow] = (),
    ) -> None:
        """Add entries, in ascending order of positions, and their index and due rows."""
        for position, entry in entries:
            txn.put(_POSITION.pack(position), entry, db=self._log, append=True)
        for queue, row in rows:
            txn.put(*row.pack(queue), db=self._rows)
        if due:
            self.due.put(txn, due)

    def write(
        self, entries: list[tuple[int, bytes]], rows: list[tuple[QueueKey, Row]], due: Sequence[DueRow] = ()
    ) -> None:
        """Call `put` in a transaction of its own, and sync."""
        with self._env.begin(write=True) as txn:
            self.put(txn, entries, rows, due)
        if due:
            self.due.changed()

    def truncate(self, position: int) -> None:
        """Delete all entries from a position on with their rows, sync, and unseal. There must be no readers."""
        self.sealed = False
        self._first.clear()
        self._newest = (-1, None)
        with self._env.begin(write=True) as txn:
            with txn.cursor(self._rows) as cursor:
                rows = [key for key, value in cursor if position_in(value) >= position]
            with txn.cursor(self._log) as cursor:
                found = cursor.set_range(_POSITION.pack(position))
                entries = list(cursor.iternext(values=False)) if found else []
            for key in rows:
                txn.delete(key, db=self._rows)
            for key in entries:
                txn.delete(key, db=self._log)
            self.due.truncate(txn, position)
        self.due.changed()

    # ---- reads --------------------------------------------------------------------------------------

    def entry_at(self, position: int) -> bytes | None:
        """Return the entry that begins at a log position, unverified; None if none does."""
        with self._reading(self._log) as txn:
            entry = txn.get(_POSITION.pack(position))
            return None if entry is None else bytes(entry)

    def entries(self, position: int = 0) -> Generator[tuple[int, memoryview], None, None]:
        """Yield (position, entry) from a log position on. Each entry is valid until the next step."""
        with self._reading(self._log) as txn, txn.cursor() as cursor:
            if cursor.set_range(_POSITION.pack(position)):
                for key, value in cursor:
                    yield _POSITION.unpack(key)[0], value

    def stored_rows(self) -> Iterator[tuple[QueueKey, bytes, bytes]]:
        """Yield the queue, key and unverified value of each index row. Raises `struct.error`."""
        with self._reading(buffers=False) as txn, txn.cursor(self._rows) as cursor:
            for key, value in cursor:
                topic_id, queue_id, _ = ROW_KEY.unpack(key)
                yield QueueKey(topic_id, queue_id), key, value

    def values_of(
        self, queue: QueueKey, offset: int = 0
    ) -> Iterator[tuple[int, bytes | memoryview, bytes | memoryview]]:
        """Yield last offset, key and unverified value of each row of a queue; valid until the next step."""
        with self._reading() as txn:
            yield from self._values_from(txn, queue, offset)

    def queues_of(self, topic_id: int) -> Iterator[QueueKey]:
        """Yield the queues of a topic that have batches in this segment."""
        with self._reading(self._rows) as txn, txn.cursor() as cursor:
            more = cursor.set_range(ROW_KEY.pack(topic_id, 0, 0))
            while more:
                found, queue_id, _ = ROW_KEY.unpack(cursor.key())
                if found != topic_id:
                    return
                yield QueueKey(found, queue_id)
                more = cursor.set_range(ROW_KEY.pack(topic_id, queue_id + 1, 0))

    def topics(self) -> Iterator[int]:
        """Yield the ids of the topics that have batches in this segment."""
        with self._reading(self._rows) as txn, txn.cursor() as cursor:
            more = cursor.first()
            while more:
                topic_id = int(ROW_KEY.unpack(cursor.key())[0])
                yield topic_id
                more = cursor.set_range(ROW_KEY.pack(topic_id + 1, 0, 0))

    def read(self, queue: QueueKey, offset: int, limits: ReadLimits) -> ReadResult:
        """Read batches of a queue, from the one that holds `offset` or the next one.

        Batches without a wanted tag are skipped by their rows alone: their entries are not read.
        """
        found: list[tuple[Row, bytes]] = []
        due_ms: dict[int, int] = {}
        next_offset, rows = offset, 0
        messages, size, wanted = limits.max_messages, limits.max_bytes, limits.tag_hashes
        last, begins_at = offset, -1
        borrowed = limits.borrowed
        try:
            with self._reading() if borrowed is None else nullcontext(borrowed.reading(self, self._reading)) as txn:
                for last, key, value in self._values_from(txn, queue, offset):
                    check_row(key, value)
                    base = last - count_in(value) + 1
                    if not rows:
                        begins_at = base
                    elif base != next_offset and not self.rewritten_to:
                        raise CorruptEntry(f"what follows on offset {next_offset - 1} begins at {base}")
                    if not wanted or may_hold(value, wanted):
                        row = unpack_row(last, value)
                        entry = self._entry_of(txn, queue, row)
                        begin = batch_at(entry)
                        batch = memoryview(entry)[begin:]
                        if limits.may_hold(batch):
                            if begin > HEADER_BYTES and entry[KIND_AT] == EntryKind.RELEASED:
                                due_ms[row.position] = held_key_of(entry, row.position).due_ms
                            found.append((row, bytes(batch) if borrowed is None else cast("bytes", batch)))
                            size -= row.size
                            messages -= row.last_offset + 1 - max(offset, row.base_offset)
                    rows, next_offset = rows + 1, last + 1
                    if size <= 0 or messages <= 0 or rows >= limits.max_rows:
                        break
        except DAMAGE as error:
            if not rows:
                raise CorruptEntry(
                    f"{self.path.name}: queue {queue} cannot be read at offset {offset} ({error}): go on from offset "
                    f"{last + 1}; stop the broker and run minimq-broker check",
                    next_offset=last + 1,
                ) from error
            return ReadResult(found, next_offset, rows, is_cut=True, begins_at=begins_at, due_ms=due_ms)
        return ReadResult(found, next_offset, rows, begins_at=begins_at, due_ms=due_ms)

    def _entry_of(self, txn: lmdb.Transaction, queue: QueueKey, row: Row) -> bytes | memoryview:
        entry = txn.get(_POSITION.pack(row.position), db=self._log)
        if entry is None:
            raise CorruptEntry(f"its index row points at position {row.position}, where no entry begins")
        if len(entry) != row.size or not stands_at(entry, queue, row.base_offset, row.stored_ms):
            raise CorruptEntry(f"its index row points at position {row.position}, where another entry is")
        return entry

    def row_at(self, queue: QueueKey, offset: int) -> Row | None:
        """Return the row of the batch that holds `offset`, or of the next one; None if this segment has neither."""
        with self._reading() as txn:
            return next(self._rows_from(txn, queue, offset), None)

    def row_before(self, queue: QueueKey, offset: int) -> Row | None:
        """Return the row of the last batch that ends before `offset`, None if this segment has none."""
        with self._reading() as txn:
            return self._last_row(txn, queue, offset)

    def first_offset(self, queue: QueueKey) -> int | None:
        """Return the first offset of a queue in this segment, None if the queue has no batch in it."""
        if queue in self._first:
            return self._first[queue]
        sealed = self.sealed  # before the lookup: another thread may write and seal the segment in between
        with self._reading() as txn:
            row = next(self._rows_from(txn, queue, 0), None)
        first = row.base_offset if row else None
        if sealed:
            self._first[queue] = first
        return first

    def offset_at(self, queue: QueueKey, timestamp_ms: int) -> int | None:
        """Return the first offset of a queue stored at or after a time (ms since 1970), None if there is none here."""
        return self._first_offset_of(queue, lambda row: row.stored_ms >= timestamp_ms)

    def offset_from(self, queue: QueueKey, position: int) -> int | None:
        """Return the first offset of a queue at or after a log position, None if there is none here."""
        return self._first_offset_of(queue, lambda row: row.position >= position)

    def _first_offset_of(self, queue: QueueKey, is_it: Callable[[Row], bool]) -> int | None:
        with self._reading() as txn:
            last = self._last_row(txn, queue)
            if last is None or not is_it(last):
                return None
            low, high = 0, last.last_offset  # invariant: the wanted row holds an offset in [low, high]
            while low < high:
                middle = (low + high) // 2
                row = next(self._rows_from(txn, queue, middle))
                if is_it(row):
                    high = min(row.base_offset, middle)
                else:
                    low = row.last_offset + 1
            return next(self._rows_from(txn, queue, low)).base_offset

    def _rows_from(self, txn: lmdb.Transaction, queue: QueueKey, offset: int) -> Iterator[Row]:
        for last, key, value in self._values_from(txn, queue, offset):
            check_row(key, value)
            yield unpack_row(last, value)

    def _values_from(
        self, txn: lmdb.Transaction, queue: QueueKey, offset: int
    ) -> Iterator[tuple[int, bytes | memoryview, bytes | memoryview]]:
        with txn.cursor(self._rows) as cursor:
            if not cursor.set_range(ROW_KEY.pack(*queue, offset)):
                return
            for key, value in cursor:
                topic_id, queue_id, last = ROW_KEY.unpack(key)
                if topic_id != queue.topic_id or queue_id != queue.queue_id:
                    return
                yield last, key, value

    def _last_row(self, txn: lmdb.Transaction, queue: QueueKey, before: int = _MAX_OFFSET) -> Row | None:
        with txn.cursor(self._rows) as cursor:
            beyond = cursor.set_range(ROW_KEY.pack(*queue, before))
            if not (cursor.prev() if beyond else cursor.last()):
                return None
            topic_id, queue_id, last = ROW_KEY.unpack(cursor.key())
            if (topic_id, queue_id) != queue:
                return None
            check_row(cursor.key(), cursor.value())
            return unpack_row(last, cursor.value())
