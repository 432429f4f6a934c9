"""Verifies a sealed segment in small steps while the broker runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

from minimq_broker.store.segment import PageCheck, Segment, rows_of
from minimq_common.errors import CorruptEntry


def verified(segment: Segment, end: int, max_bytes: int, max_entries: int) -> Iterator[None]:
    """Verify all pages, then all entries and index rows of a sealed segment, some of them in each step.

    Raises one of `DAMAGE` if something is damaged. No read transaction is open between two steps.
    """
    yield from PageCheck(segment.path).walk(deep=True)
    position, is_over = segment.start, False
    found: Counter[str] = Counter()
    while not is_over:
        left_bytes, left_entries, is_over = max_bytes, max_entries, True
        with closing(segment.entries(position)) as entries:
            for at, data in entries:
                position = _verified(segment, position, at, bytes(data), found)
                left_bytes, left_entries = left_bytes - len(data), left_entries - 1
                if left_bytes <= 0 or left_entries <= 0:
                    is_over = False
                    break
        if not is_over:
            yield
    if (segment.rewritten_to or position) != end:
        raise CorruptEntry(f"it ends at position {position}, and the next one starts at {end}")
    if segment.counts != (counts := (found["entries"], found["rows"], found["due"])):
        raise CorruptEntry(
            "it has {} entries, {} batches in queues and {} due rows, but it says that it has {} entries, {} index"
            " rows and {} due rows".format(*counts, *segment.counts)
        )


def _verified(segment: Segment, expected: int, position: int, data: bytes, found: Counter[str]) -> int:
    if position < expected or (position > expected and not segment.rewritten_to):
        raise CorruptEntry(f"an entry begins at position {position}, where {expected} was expected")
    rows, due_rows = rows_of([(position, data)])
    found.update(entries=1, rows=len(rows), due=len(due_rows))
    for queue, row in rows:
        if segment.row_at(queue, row.last_offset) != row:
            raise CorruptEntry(f"the index row of queue {queue} offset {row.last_offset} is wrong")
    for due in due_rows:
        if not segment.due.has(due):
            raise CorruptEntry(f"the due row of the batch of position {due.due.id} is wrong")
    return position + len(data)
