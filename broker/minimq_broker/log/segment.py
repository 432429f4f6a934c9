"""One segment: an LMDB file with a part of the CommitLog and the ConsumeQueue rows of its batches.

All tables are written in one transaction, so after a crash they still match:

    log             position -> entry
    consumequeue    (topic id, queue id, last offset of the batch) -> `Row`
    NAME            index rows of a feature, see `IndexTable`

A rewritten segment (see `rewriting.py`) lacks some entries, so a mark stores the log position at which it ends.

Rows are keyed by the *last* offset: a single seek to the first row at or after n finds the batch that holds offset n.
Store times never go back within a queue: a binary search over its rows finds the first batch at or after a time.

A sealed segment gets a checksum of the whole file, see `file_checksum.py`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import lmdb

from minimq_broker.features.feature import IndexRow
from minimq_broker.features.registry import FEATURES, index_rows_of
from minimq_broker.log.entry import (
    HEADER_BYTES,
    KIND_AT,
    EntryKind,
    batch_at,
    opened,
    read_header,
    released_from,
    stands_at,
)
from minimq_broker.log.file_checksum import remove_checksum
from minimq_broker.log.index_table import IndexTable
from minimq_broker.log.lmdb_file import close_with, open_lmdb, remove_lmdb, unusable
from minimq_broker.log.rows import (
    ROW,
    ROW_KEY,
    Reading,
    Row,
    StoredBatch,
    check_row,
    count_in,
    may_hold,
    position_in,
    row_of,
    unpack_row,
)
from minimq_broker.log.sealed_rows import RowDamage, seal, unseal
from minimq_broker.state.state import QueueKey
from minimq_common.errors import CorruptEntry, StoreError

LOG_TABLE = b"log"
_ROW_TABLE = b"consumequeue"
#: The log position at which a rewritten segment ends, as its last entries may be missing.
_MARK_TABLE, _MARK_KEY, _MARK = b"rewritten", b"end", struct.Struct(">Q")
#: Size of the memory map beyond the size at which a segment is sealed; address space, not memory or disk.
_MAP_SLACK_BYTES = 512 << 20
#: Descriptors that LMDB keeps for an open segment: data, lock, and data again for synced writes.
FILES_PER_SEGMENT = 3
_POSITION = struct.Struct(">Q")
_MAX_OFFSET = (1 << 64) - 1


def rows_of(
    entries: Sequence[tuple[int, bytes]], *, verified: bool = False
) -> tuple[list[tuple[QueueKey, Row]], list[IndexRow]]:
    """Decode entries and return their rows, and those of features. Raises `StoreError`."""
    rows: list[tuple[QueueKey, Row]] = []
    index_rows: list[IndexRow] = []
    for position, data in entries:
        header, about, effect = opened(data, position, verified=verified)
        index_rows += index_rows_of(effect, position)
        if about is not None:
            rows.append((header.queue, row_of(header, about, position, len(data))))
    return rows, index_rows


class Segment:
    """One file of the CommitLog. One thread writes; any thread reads."""

    def __init__(self, path: Path, start: int, segment_bytes: int, *, readonly: bool = False) -> None:
        self.path = path
        self.start = start
        size = path.stat().st_size if path.exists() else 0
        tables = (LOG_TABLE, _ROW_TABLE)
        map_bytes = max(segment_bytes, size) + _MAP_SLACK_BYTES
        self._env = open_lmdb(path, map_bytes=map_bytes, readonly=readonly, tables=tables)
        try:
            self._log, self._rows = (self._env.open_db(name, create=False) for name in tables)
            #: The index tables of features, by name.
            self.indexes = {
                name: IndexTable(name, self._env, self._reading) for name, each in FEATURES.items() if each.has_index
            }
            self.rewritten_to = self._mark()
        except BaseException as error:
            self._env.close()
            if isinstance(error, lmdb.Error):
                raise unusable(path, error) from None
            raise
        self._page_bytes = self._env.stat()["psize"]
        #: Cache of `first_offset`, used once the segment is sealed.
        self._first: dict[QueueKey, int | None] = {}
        #: The number of changes of the content, which invalidate the two caches below.
        self.changes = 0
        #: Cache of `newest_ms`: the changes it has seen, the last position, and the result.
        self._newest: tuple[int, int, int | None] = (-1, -1, None)
        #: Cache of `topics`: the changes it has seen, and the result.
        self._topics: tuple[int, frozenset[int]] = (-1, frozenset())
        self.sealed = False

    @property
    def end(self) -> int:
        if self.rewritten_to:
            return self.rewritten_to
        with self._reading(self._log) as txn, txn.cursor() as cursor:
            if not cursor.last():
                return self.start
            return int(_POSITION.unpack(cursor.key())[0]) + len(cursor.value())

    def newest_ms(self) -> int | None:
        """Return when the last batch was written, in ms since 1970; None without batches. Raises `CorruptEntry`."""
        changes = self.changes  # before the lookup, so that a write in between invalidates the result
        known, seen, newest = self._newest
        if known == changes:
            return newest
        with self._reading(self._log) as txn, txn.cursor() as cursor:
            found = more = cursor.last()
            last = int(_POSITION.unpack(cursor.key())[0]) if found else seen
            while more and (position := int(_POSITION.unpack(cursor.key())[0])) > seen:  # many facts may follow it
                header = read_header(cursor.value(), position)
                if header.kind != EntryKind.FACT:
                    newest = header.stored_ms
                    break
                more = cursor.prev()
        self._newest = changes, last, newest
        return newest

    # ---- the file -----------------------------------------------------------------------------------

    def _mark(self) -> int:
        try:
            table = self._env.open_db(_MARK_TABLE, create=False)
            with self._env.begin(table) as txn:
                return int(_MARK.unpack(unseal(_MARK_KEY, bytes(txn.get(_MARK_KEY, b""))))[0])
        except lmdb.NotFoundError:
            return 0
        except (RowDamage, struct.error) as error:
            raise lmdb.CorruptedError(f"the mark of a rewritten segment is damaged: {error}") from None

    def mark_rewritten(self, end: int) -> None:
        """Mark the segment as rewritten and ending at a log position, and sync."""
        table = self._env.open_db(_MARK_TABLE)
        with self._env.begin(table, write=True) as txn:
            txn.put(_MARK_KEY, seal(_MARK_KEY, _MARK.pack(end)))
        self.rewritten_to = end

    def close(self) -> None:
        """Close the file. There must be no readers."""
        self._env.close()

    def remove_file(self) -> None:
        """Unlink the file. It can be read until this object is garbage-collected."""
        self.let_go()
        remove_lmdb(self.path)

    def let_go(self) -> None:
        """Close the file when this object is garbage-collected. Its name may be reused at once."""
        close_with(self, self._env, self.path)

    def _reading(self, table: Any = None, *, buffers: bool = True) -> Any:
        begin: Any = self._env.begin
        return begin(table, buffers=buffers)

    @property
    def used_bytes(self) -> int:
        return int(self._env.info()["last_pgno"] + 1) * self._page_bytes

    # ---- writes -------------------------------------------------------------------------------------

    def write(
        self, entries: list[tuple[int, bytes]], rows: list[tuple[QueueKey, Row]], index_rows: Sequence[IndexRow] = ()
    ) -> None:
        """Add entries, in ascending order of positions, and their rows, and sync."""
        with self._env.begin(write=True) as txn:
            for position, entry in entries:
                if not txn.put(_POSITION.pack(position), entry, db=self._log, append=True):
                    raise lmdb.KeyExistsError(f"{self.path.name} already has an entry at or after position {position}")
            for queue, row in rows:
                txn.put(*row.pack(queue), db=self._rows)
            for index_row in index_rows:
                self.indexes[index_row.table].put(txn, index_row)
        self.changes += 1
        for index_row in index_rows:
            self.indexes[index_row.table].changed()

    def truncate(self, position: int) -> None:
        """Delete all entries from a position on with their rows, sync, and unseal. There must be no readers."""
        self.sealed = False
        self._first.clear()
        self._newest = (-1, -1, None)
        remove_checksum(self.path)
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
            for index in self.indexes.values():
                index.truncate(txn, position)
        self.changes += 1
        for index in self.indexes.values():
            index.changed()

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
        with self._reading(self._rows) as txn, txn.cursor() as cursor:
            more = cursor.set_range(ROW_KEY.pack(topic_id, 0, 0))
            while more:
                found, queue_id, _ = ROW_KEY.unpack(cursor.key())
                if found != topic_id:
                    return
                yield QueueKey(found, queue_id)
                more = cursor.set_range(ROW_KEY.pack(topic_id, queue_id + 1, 0))

    def topics(self) -> frozenset[int]:
        changes = self.changes  # as in `newest_ms`
        known, topics = self._topics
        if known != changes:
            topics = frozenset(self._read_topics())
            self._topics = changes, topics
        return topics

    def _read_topics(self) -> Iterator[int]:
        with self._reading(self._rows) as txn, txn.cursor() as cursor:
            more = cursor.first()
            while more:
                topic_id = int(ROW_KEY.unpack(cursor.key())[0])
                yield topic_id
                more = cursor.set_range(ROW_KEY.pack(topic_id + 1, 0, 0))

    def read(self, queue: QueueKey, reading: Reading, lacks: Callable[[QueueKey, int], bool]) -> None:
        """Continue a read with the batch that holds its next offset, or the next one. Raises one of `DAMAGE`.

        Batches without a wanted tag are skipped by their rows alone: their entries are not read. `lacks` returns
        whether a batch is missing.
        """
        limits, is_first = reading.limits, True
        wanted, borrowed = limits.tag_hashes, limits.borrowed
        with self._reading() if borrowed is None else nullcontext(borrowed.reading(self, self._reading)) as txn:
            for last, key, value in self._values_from(txn, queue, reading.next_offset):
                reading.at = last
                check_row(key, value)
                base, expected = last - count_in(value) + 1, reading.next_offset
                if is_first and base > expected and lacks(queue, expected):
                    raise CorruptEntry(f"offsets {expected} to {base - 1} are missing", next_offset=base)
                if not is_first and base != expected and not self.rewritten_to:
                    raise CorruptEntry(f"what follows on offset {expected - 1} begins at {base}")
                if not wanted or may_hold(value, wanted):
                    self._add(txn, queue, last, value, reading)
                is_first, reading.rows, reading.next_offset = False, reading.rows + 1, last + 1
                if reading.bytes_left <= 0 or reading.messages_left <= 0 or reading.rows >= limits.max_rows:
                    reading.is_over = True
                    return

    def _add(
        self, txn: lmdb.Transaction, queue: QueueKey, last: int, value: bytes | memoryview, reading: Reading
    ) -> None:
        position, size, count, stored_ms = ROW.unpack_from(value)[:4]
        base, limits = last - count + 1, reading.limits
        entry = txn.get(_POSITION.pack(position), db=self._log)
        if entry is None:
            raise CorruptEntry(f"its index row points at position {position}, where no entry begins")
        if len(entry) != size or not stands_at(entry, queue, base, stored_ms):
            raise CorruptEntry(f"its index row points at position {position}, where another entry is")
        begin, until_ms = batch_at(entry), 0
        data = memoryview(entry)[begin:]
        if limits.may_hold is not None and not limits.may_hold(data):
            return
        if begin > HEADER_BYTES and entry[KIND_AT] == EntryKind.RELEASED:
            until_ms = released_from(entry, position)[1].until_ms
        batch = bytes(data) if limits.borrowed is None else cast("bytes", data)
        reading.found.append(StoredBatch(base, stored_ms, position, count, batch, until_ms))
        reading.bytes_left -= size
        reading.messages_left -= last + 1 - max(reading.start, base)

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

    def first_offset_of(self, queue: QueueKey, is_it: Callable[[Row], bool]) -> int | None:
        """Return the first offset of a queue whose row passes `is_it`; all later rows must pass, too."""
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


def is_segment(path: Path) -> bool:
    return re.fullmatch(r"[0-9]{20}\.mdb", path.name) is not None


def segment_files(path: Path, without: Collection[str] = ()) -> list[Path]:
    """Return the segment files in order, except those in `without`. Raises `StoreError` for a misnamed file."""
    files = sorted(file for file in path.glob("*.mdb") if file.name not in without)
    for file in files:
        if not is_segment(file):
            raise StoreError(
                f"{file} is not named like a segment, whose name is a log position of 20 digits: move it away"
            )
    return files
