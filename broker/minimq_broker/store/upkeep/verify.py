"""Verification of a sealed segment in small steps, while the broker runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from minimq_broker.store.entry import opened
from minimq_broker.store.held.due_table import due_rows_of
from minimq_broker.store.rows import row_of
from minimq_broker.store.segment import Segment
from minimq_broker.store.segment_file import PageCheck
from minimq_common.errors import CorruptEntry


class Verification:
    """A walk through all pages, then all entries and index rows of one read-only segment."""

    def __init__(self, segment: Segment, end: int) -> None:
        self.is_over = False
        self.segment = segment
        self._end = end
        self._position = segment.start
        self._entries = self._rows = self._due = 0
        self._pages: Iterator[None] | None = PageCheck(segment.path).walk(deep=True)

    def step(self, max_bytes: int, max_entries: int) -> None:
        """Look at some entries. Raises one of `DAMAGE` if something was changed."""
        if self._pages is not None:
            if next(self._pages, self) is self:  # they are all in order
                self._pages = None
            return
        left_bytes, left_entries = max_bytes, max_entries
        with closing(self.segment.entries(self._position)) as entries:
            for position, data in entries:
                self._verify(position, bytes(data))
                left_bytes -= len(data)
                left_entries -= 1
                if left_bytes <= 0 or left_entries <= 0:
                    return
        if (self.segment.rewritten_to or self._position) != self._end:
            raise CorruptEntry(f"it ends at position {self._position}, and the next one starts at {self._end}")
        if self.segment.counts != (self._entries, self._rows, self._due):
            raise CorruptEntry(
                f"it has {self._entries} entries, {self._rows} batches in queues and {self._due} due rows, but it"
                " says that it has {} entries, {} index rows and {} due rows".format(*self.segment.counts)
            )
        self.is_over = True

    def _verify(self, position: int, data: bytes) -> None:
        if position < self._position or (position > self._position and not self.segment.rewritten_to):
            raise CorruptEntry(f"an entry begins at position {position}, where {self._position} was expected")
        header, about, done = opened(data, position)
        self._position = position + len(data)
        self._entries += 1
        if about is not None:
            self._rows += 1
            row = row_of(header, about, position, len(data))
            if self.segment.row_at(header.queue, row.last_offset) != row:
                raise CorruptEntry(f"the index row of queue {header.queue} offset {row.last_offset} is wrong")
        for due in due_rows_of(done, position):
            self._due += 1
            if not self.segment.due.has(due):
                raise CorruptEntry(f"the due row of the batch of position {due.due.id} is wrong")
