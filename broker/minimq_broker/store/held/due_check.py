"""The verification of delayed batches: their rows against the log, and the log against the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from minimq_broker.core.facts import GroupDeleted, TopicDeleted, TopicSet
from minimq_broker.core.held.delays import (
    BatchDelayed,
    BatchesRecalled,
    DelaysSetBack,
    DelayTable,
    DueKey,
    DueMark,
    DueSkipped,
)
from minimq_broker.core.state import BatchApplied, Effect, State
from minimq_broker.store.held.due_rows import due_rows_of
from minimq_broker.store.segment import Segment
from minimq_common.errors import CorruptEntry


class DueCheck:
    """Repeats what a log says about delayed batches. Its memory depends on how many one segment has."""

    def __init__(self, saved: State, *, is_whole: bool) -> None:
        self._saved, self._is_whole = saved, is_whole
        self._table = DelayTable(set())
        self._ids: dict[str, int] = {}
        self._expected: dict[bytes, bytes] = {}
        self._published = DueMark()

    def lacks_entries(self) -> None:
        """Note that the log lacks some entries."""
        self._is_whole = False

    def note(self, done: Effect, position: int, size: int) -> None:
        """Take in what an entry at a log position does. Raises `CorruptEntry` if it cannot follow those before it."""
        self._expected.update(row.pack() for row in due_rows_of(done, position, size))
        if position < self._saved.position:
            self._replay(done)
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

    def _replay(self, done: Effect) -> None:
        match done:
            case BatchDelayed() | BatchesRecalled() | DueSkipped() | DelaysSetBack():
                self._table.apply(done)
            case BatchApplied() if done.due is not None:
                self._table.publish(done.due, done.queue.topic_id, done.end.offset - done.place.base_offset)
            case TopicSet(topic):
                self._ids[topic.name] = topic.topic_id
            case TopicDeleted(name):
                self._forget(name)
            case GroupDeleted(_, topics):
                for name in topics:
                    self._forget(name)

    def _forget(self, name: str) -> None:
        if name in self._ids:
            self._table.forget_topic(self._ids.pop(name))

    def row_findings(self, segment: Segment) -> Iterator[tuple[int, str]]:
        """Yield log position and text of what is wrong in the due table of the segment whose entries came last."""
        expected, self._expected = self._expected, {}
        for key, value in segment.due.stored():
            if expected.pop(key, None) != value:
                yield -1, f"the due row {key.hex()} is wrong"
        for key in expected:
            yield int.from_bytes(key[8:16], "big"), f"the due row {key.hex()} is missing"

    def findings(self) -> Iterator[str]:
        """Yield a text for each thing in the checkpoint that does not follow from the log."""
        saved = self._saved.delays
        if self._table.mark > saved.mark or (self._is_whole and self._table.published != saved.published):
            yield f"delayed batches are published up to {saved.published}, but by the log up to {self._table.published}"
        if self._is_whole and self._table.by_topic != saved.by_topic:
            yield f"{saved.by_topic} batches wait by topic, but by the log {self._table.by_topic}"
