"""Delayed messages as a feature of the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minimq_broker.features.delayed.delaying import DelayServing
from minimq_broker.features.delayed.due_index import DelayPins
from minimq_broker.features.delayed.due_rows import index_rows
from minimq_broker.features.delayed.jobs import UncommittedDelays
from minimq_broker.features.delayed.table import (
    NAME,
    TAG,
    BatchesRecalled,
    DelaysSetBack,
    DelayTable,
    DueMark,
    DueSkipped,
)
from minimq_broker.features.feature import Feature
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.state.queue_ends import BatchApplied, HeldKey
from minimq_broker.state.state import State
from minimq_common.errors import CorruptEntry


class Delayed(Feature):
    name = NAME
    tag = TAG
    hold_field = "delay"
    has_index = True
    facts = (BatchesRecalled, DueSkipped, DelaysSetBack)
    table = DelayTable
    scratch = UncommittedDelays
    serve = DelayServing
    index_rows = staticmethod(index_rows)

    def pins(self, state: State, log: CommitLog) -> DelayPins:
        return DelayPins(log, state.tables[NAME].saved_mark)

    def audit(self) -> Callable[[Any, int], None]:
        return _OrderCheck().note


class _OrderCheck:
    """Verifies the order of publications and recalls."""

    def __init__(self) -> None:
        self._published = DueMark()

    def note(self, done: Any, position: int) -> None:
        if isinstance(done, DueSkipped):
            self._move(HeldKey(done.due_ms, done.id))
        elif isinstance(done, BatchApplied) and done.released is not None and done.released_by == TAG:
            self._move(done.released, is_published=True)
        elif isinstance(done, BatchesRecalled):
            for each in done.batches:
                if self._published.covers(HeldKey(each.due_ms, each.id)):
                    raise CorruptEntry(f"a batch that was due at {each.due_ms}, id {each.id}, is recalled too late")
        elif isinstance(done, DelaysSetBack):
            self._published = self._published.set_back(done)

    def _move(self, key: HeldKey, *, is_published: bool = False) -> None:
        mark = self._published.key
        if key <= mark or (is_published and self._published.covers(key)):
            raise CorruptEntry(
                f"the batch that was due at {key.until_ms}, id {key.position}, is published again, or out of order: "
                f"that of {mark.until_ms}, id {mark.position}, is ahead of it"
            )
        self._published = self._published.moved(key)
