"""Rewrites sealed segments: replaces several by one file with only the entries that are still needed.

Entries keep their log positions, so references to them stay valid. Removed entries leave gaps, so the log is complete
only from the end of the last rewritten segment on. A `Choice` decides on batches in queues. Facts and held batches are
removed, since the state is saved, except those that a feature pins. Each replica rewrites on its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

import lmdb

from minimq_broker.features.feature import Pins
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.disk import writing
from minimq_broker.log.entry import IN_QUEUE, KIND_AT, EntryHeader, effect, read_header
from minimq_broker.log.lmdb_file import remove_lmdb
from minimq_broker.log.segment import Segment, rows_of
from minimq_common.errors import StoreError

#: Entries with their log positions, ascending and without overlaps.
Placed = list[tuple[int, bytes]]
#: Decides what replaces the batch in an entry: the entry itself, nothing, or a list of entries of the same queues and
#: offsets, which replaces it and some before it. Called in log order.
Choice = Callable[[int, EntryHeader, memoryview], memoryview | Placed | None]

#: Makes file names unique: two rewritings may have the same start; then only one of them is put in place.
_numbers = itertools.count()


class Rewriting:
    """Makes one segment from adjacent ones, in small steps. Used by one thread at a time."""

    def __init__(
        self,
        log: CommitLog,
        segments: Sequence[Segment],
        end: int,
        choice: Choice,
        pins: Sequence[Pins],
        rest: Callable[[], Placed] = list,
    ) -> None:
        self.start, self.end = segments[0].start, end
        self.former = tuple(segments)
        self.kept_bytes = 0
        self._log, self._choice, self._pins = log, choice, pins
        self._waiting = [*segments]
        self._rest = rest
        #: Log positions after the last entry that was read, and that was written.
        self._read_to = self._written_to = self.start
        # The next start deletes files with such a name.
        self._path = log.path / f"{self.start:020d}.new-rewriting-{next(_numbers)}"
        with writing(log.path):
            self._made = Segment(self._path, self.start, sum(segment.used_bytes for segment in segments))

    @property
    def at(self) -> Segment:
        """The segment whose entries are read next."""
        return self._waiting[0] if self._waiting else self.former[-1]

    def step(self, max_bytes: int, max_entries: int) -> bool:
        """Copy the next needed entries, verified and synced; return whether there may be more."""
        if not self._waiting:
            return False
        found: Placed = []
        with closing(self._waiting[0].entries(self._read_to)) as entries:
            while max_bytes > 0 and max_entries > 0:
                item = next(entries, None)
                if item is None:
                    self._waiting.pop(0)
                    break
                position, entry = item
                self._read_to = position + len(entry)
                max_bytes, max_entries = max_bytes - len(entry), max_entries - 1
                found += self._taken(position, entry)
        if not self._waiting:
            found += self._rest()
        self._put(found)
        return bool(self._waiting)

    def _taken(self, position: int, entry: memoryview) -> Placed:
        if entry[KIND_AT] in IN_QUEUE:
            chosen = self._choice(position, read_header(entry, position), entry)
            if isinstance(chosen, list):
                return chosen
            return [] if chosen is None else [(position, bytes(chosen))]
        done = effect(entry, position)
        is_needed = any(each.keeps(done, position) for each in self._pins)
        return [*self._rest(), (position, bytes(entry))] if is_needed else []

    def _put(self, entries: Placed) -> None:
        for position, entry in entries:
            if position < self._written_to or position + len(entry) > self._read_to:
                raise StoreError(
                    f"an entry of {len(entry)} bytes does not fit at position {position}, between {self._written_to} "
                    f"and {self._read_to}"
                )
            self._written_to = position + len(entry)
            self.kept_bytes += len(entry)
        if entries:
            rows, index_rows = rows_of(entries)
            with writing(self._log.path):
                self._made.write(entries, rows, index_rows)

    def put_in_place(self) -> bool:
        """Replace the former segments; return False if one of them was removed or marked as damaged meanwhile."""
        with writing(self._log.path):
            self._made.mark_rewritten(self.end)
            self._made.close()
            return self._log.replace(self.former, self._path)

    def close(self) -> None:
        """Close and delete the new segment, unless it was put in place. Idempotent."""
        with suppress(lmdb.Error):
            self._made.close()
        remove_lmdb(self._path)
