"""The archive of dead letters: dead letters whose segments were removed.

A file with the tables of a segment. Batches keep their positions, offsets, times and numbers, so that readers of dead
letters find them as if their segments still existed. The archive has the part of each queue before the segments: it
grows at its end, and is cut at its beginning. There is a gap only where a full disk or a damaged segment has lost some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import closing
from itertools import islice, takewhile
from pathlib import Path

import lmdb

from minimq_broker.core.state import QueueKey
from minimq_broker.store.entry import payload_of, read_header
from minimq_broker.store.rows import Batch
from minimq_broker.store.segment import Segment
from minimq_common import batch
from minimq_common.errors import MiniMQError

#: Number of batches that one transaction deletes: it is small, and so is its memory.
_DELETED_BATCHES = 1000
#: Address space for an archive without a limit.
_UNLIMITED_BYTES = 1 << 38


class DeadLetterArchive(Segment):
    """The file of archived dead letters. One thread at a time changes it; any thread reads."""

    def __init__(self, path: Path, max_bytes: int, *, readonly: bool = False) -> None:
        # Free pages of the file are reused, but not always at once, nor for every size.
        room = 0 if readonly else 2 * max_bytes or _UNLIMITED_BYTES
        super().__init__(path, 0, room, readonly=readonly)
        try:
            self.topic_ids = frozenset(self.topics())
        except BaseException:
            self.close()
            raise
        self.has_gaps = True
        self.cuts = 0

    @property
    def live_bytes(self) -> int:
        """Bytes of the file that hold data."""
        with self._env.begin() as txn:
            return self._live_bytes(txn)

    def part(self, position: int, before: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """Return entries with their positions, from one log position on up to another.

        It stops after the one that reaches a size; there is none only behind the last one.
        """
        found: list[tuple[int, bytes]] = []
        with closing(self.entries(position)) as entries:
            for at, entry in takewhile(lambda item: item[0] < before, entries):
                found.append((at, bytes(entry)))
                max_bytes -= len(entry)
                if max_bytes <= 0:
                    break
        return found

    def add(self, batches: Collection[Batch]) -> None:
        """Put batches in, synced; an existing one stays unchanged."""
        with self.begin() as txn:
            self.put_batches(txn, batches)
        self.topic_ids |= {queue.topic_id for queue, _, _ in batches}

    def cut(self, is_due: Callable[[int, int], bool], rounds: int | None = None) -> Counter[QueueKey]:
        """Delete the oldest batches while they are due, synced; return the number of messages of each queue."""
        gone: Counter[QueueKey] = Counter()
        while rounds != 0 and (due := self._cut_some(is_due)) is not None:
            gone += due
            self.cuts += 1
            rounds = rounds if rounds is None else rounds - 1
        if gone:
            self.topic_ids = frozenset(self.topics())
        return gone

    def _cut_some(self, is_due: Callable[[int, int], bool]) -> Counter[QueueKey] | None:
        with self._env.begin() as looking, looking.cursor(self._log) as cursor:
            if not cursor.first() or not is_due(_stored_ms(cursor), self._live_bytes(looking)):
                return None
        gone: Counter[QueueKey] = Counter()
        with self.begin() as txn, txn.cursor(self._log) as cursor:
            for _ in range(_DELETED_BATCHES):
                if not cursor.first() or not is_due(_stored_ms(cursor), self._live_bytes(txn)):
                    break
                queue, count = self._delete_row(txn, int.from_bytes(cursor.key(), "big"), cursor.value())
                gone[queue] += count
                cursor.delete()
        return gone

    def _delete_row(self, txn: lmdb.Transaction, position: int, entry: bytes | memoryview) -> tuple[QueueKey, int]:
        try:
            header = read_header(memoryview(entry), position)
            count = batch.read_header(payload_of(memoryview(entry), header)).count
            row = header.queue, header.base_offset + count - 1
        except MiniMQError:  # it is damaged: the row is where it says that it is
            queue, found = next((item for item in self.rows_in(txn) if item[1].position == position), (None, None))
            if queue is None or found is None:
                return QueueKey(0, 0), 0
            row, count = (queue, found.last_offset), found.count
        self.delete_row(txn, *row)
        return row[0], count

    def forget(self, topic_ids: Collection[int]) -> None:
        """Delete all that is here of topics, synced."""
        for topic_id in topic_ids:
            while doomed := list(islice(self.rows_of(topic_id), _DELETED_BATCHES)):
                with self.begin() as txn:
                    for queue, row in doomed:
                        self.delete_row(txn, queue, row.last_offset)
                        self.delete_entry(txn, row.position)
        self.topic_ids = frozenset(self.topics())
        self.cuts += 1

    def truncate(self, position: int) -> None:
        """Delete all batches from a log position on, as `Segment.truncate` does."""
        super().truncate(position)
        self.topic_ids = frozenset(self.topics())
        self.cuts += 1

    def _live_bytes(self, txn: lmdb.Transaction) -> int:
        stats = [txn.stat(table) for table in (self._log, self._rows)]
        pages = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)
        return int(pages * stats[0]["psize"])


def _stored_ms(cursor: lmdb.Cursor) -> int:
    try:
        return read_header(memoryview(cursor.value()), 0).stored_ms
    except MiniMQError:
        return 0  # a damaged one goes when anything does by its age
