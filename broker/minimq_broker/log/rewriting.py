"""Rewrites sealed segments: replaces several by one file with only the entries that are still needed.

Entries keep their log positions, so references to them stay valid. Removed entries leave gaps, so the log is complete
only from the end of the last rewritten segment on. Facts are removed, since the state is saved. Waiting delayed batches
stay, and so do recalls until their batch is due. Each replica rewrites on its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import closing

from minimq_broker.backup.copy import Placed, SegmentCopy, writing
from minimq_broker.features.delayed.due_index import DueIndex
from minimq_broker.features.delayed.table import NO_KEY, BatchesRecalled, DelaysSetBack
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.entry import EntryHeader, EntryKind, payload_of, read_fact, read_header
from minimq_broker.log.segment import Segment
from minimq_broker.state.queue_ends import HeldKey
from minimq_common.errors import StoreError

#: Decides what replaces an entry: itself, a shorter or equally long one of the same queue and offsets, nothing, or a
#: list of entries that replaces this one and some before it. Called in log order, but not for facts and waiting
#: delayed batches.
Choice = Callable[[int, EntryHeader, memoryview], memoryview | bytes | Placed | None]


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
        mark: HeldKey = NO_KEY,
        rest: Callable[[], Placed] = list,
    ) -> None:
        self.start, self.end = segments[0].start, end
        self.former = tuple(segments)
        self.read_bytes = self.kept_bytes = 0
        self._log, self._choice = log, choice
        self._index, self._mark = DueIndex(log), mark
        self._waiting = [*segments]
        self._rest = rest
        self._position = self.start
        # The next start deletes files with such a name.
        path = log.path / f"{self.start:020d}.new-rewriting-{next(_numbers)}"
        self._made = SegmentCopy(path, self.start, sum(segment.used_bytes for segment in segments))

    @property
    def at(self) -> Segment:
        """The segment whose entries are read next."""
        return self._waiting[0] if self._waiting else self.former[-1]

    def step(self, max_bytes: int, max_entries: int) -> bool:
        """Copy the next needed entries, verified and synced; return whether there may be more."""
        if not self._waiting:
            return False
        found: Placed = []
        with closing(self._waiting[0].entries(self._position)) as entries:
            while max_bytes > 0 and max_entries > 0:
                item = next(entries, None)
                if item is None:
                    self._waiting.pop(0)
                    break
                position, entry = item
                self._position = position + len(entry)
                max_bytes, max_entries = max_bytes - len(entry), max_entries - 1
                self.read_bytes += len(entry)
                found += self._taken(position, entry)
                if found:
                    self._check_end(found[-1], self._position)
        if not self._waiting:
            found += self._rest()
        self._made.put(found)
        self.kept_bytes += sum(len(data) for _, data in found)
        return bool(self._waiting)

    def _taken(self, position: int, entry: memoryview) -> Placed:
        header = read_header(entry, position)
        chosen: memoryview | bytes | Placed | None = None
        if self._has_to_stay(position, header, entry):
            chosen = [*self._rest(), (position, bytes(entry))]
        elif header.kind != EntryKind.FACT:
            chosen = self._choice(position, header, entry)
        if isinstance(chosen, list):
            return chosen
        return [] if chosen is None else [(position, bytes(chosen))]

    def _has_to_stay(self, position: int, header: EntryHeader, entry: memoryview) -> bool:
        if header.kind == EntryKind.DELAYED:
            return self._index.needs(position, entry, self._mark)
        if header.kind != EntryKind.FACT:
            return False
        fact = read_fact(payload_of(entry), position)
        if isinstance(fact, DelaysSetBack):  # without it, later batches would seem to be published out of order
            return True
        recalled = fact.batches if isinstance(fact, BatchesRecalled) else ()
        return any((each.due_ms, each.id) > self._mark for each in recalled)

    def _check_end(self, last: tuple[int, bytes], end: int) -> None:
        position, entry = last
        if position + len(entry) > end:
            room = end - position
            raise StoreError(f"there are {room} bytes at position {position}, which cannot be replaced by {len(entry)}")

    def put_in_place(self) -> bool:
        """Replace the former segments; return False if one of them was removed or marked as damaged meanwhile."""
        self._made.finish(self.end)
        with writing(self._log.path):
            return self._log.replace(self.former, self._made.path)

    def close(self) -> None:
        """Close and delete the new segment, unless it was put in place. Idempotent."""
        self._made.give_up()
