"""The verification of delayed batches: their rows, and that each was published once, in order."""

from __future__ import annotations

from collections.abc import Iterator

from minimq_broker.core.held.delays import BatchesRecalled, DelaysSetBack, DueKey, DueMark, DueSkipped
from minimq_broker.core.state import BatchApplied, Effect
from minimq_broker.store.held.due_table import due_rows_of
from minimq_broker.store.segment import Segment
from minimq_common.errors import CorruptEntry


class DueCheck:
    """Repeats what a log says about delayed batches. Its memory depends on how many one segment has."""

    def __init__(self) -> None:
        self._expected: dict[bytes, bytes] = {}
        self._published = DueMark()

    def note(self, done: Effect, position: int) -> None:
        """Take in what an entry at a log position does. Raises `CorruptEntry` if it cannot follow those before it."""
        self._expected.update(due_rows_of(done, position))
        if isinstance(done, DueSkipped):
            self._move(DueKey(done.due_ms, done.id))
        elif isinstance(done, BatchApplied) and done.due is not None:
            self._move(done.due, is_published=True)
        elif isinstance(done, BatchesRecalled):
            for each in done.batches:
                if self._published.covers(DueKey(each.due_ms, each.id)):
                    raise CorruptEntry(f"a batch that was due at {each.due_ms}, id {each.id}, is recalled too late")
        elif isinstance(done, DelaysSetBack):
            self._published = self._published.set_back(done)

    def _move(self, key: DueKey, *, is_published: bool = False) -> None:
        mark = self._published.key
        if key <= mark or (is_published and self._published.covers(key)):
            raise CorruptEntry(
                f"the batch that was due at {key.due_ms}, id {key.id}, is published again, or out of order: that of "
                f"{mark.due_ms}, id {mark.id}, is ahead of it"
            )
        self._published = self._published.moved(key)

    def row_findings(self, segment: Segment) -> Iterator[tuple[int, str]]:
        """Yield log position and text of what is wrong in the due table of the segment whose entries came last."""
        expected, self._expected = self._expected, {}
        for key, value in segment.due.rows():
            if expected.pop(key, None) != value:
                yield -1, f"the due row {key.hex()} is wrong"
        for key in expected:
            yield int.from_bytes(key[8:16], "big"), f"the due row {key.hex()} is missing"
