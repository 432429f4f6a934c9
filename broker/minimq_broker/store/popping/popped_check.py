"""Verification of the popped queues of a checkpoint: that they can be so, and that they follow from the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from minimq_broker.core.facts import (
    Fact,
    GroupDeleted,
    GroupStarted,
    OffsetsCommitted,
    TopicDeleted,
    TopicSet,
)
from minimq_broker.core.popping.pop_queue import PopQueue, PopRow
from minimq_broker.core.popping.pop_runs import PopMoved, RunState
from minimq_broker.core.state import QueueKey, State
from minimq_common.names import DEAD_LETTER_PREFIX

_Key = tuple[str, int, int]


class PoppedReplay:
    """Repeats the facts about popped queues; takes as much memory as they take in a broker."""

    def __init__(self, saved: State, *, is_whole: bool) -> None:
        self._saved = saved
        self._is_whole = is_whole
        self._state = State()

    def apply(self, fact: Fact, position: int) -> None:
        """Repeat a fact of the log. Raises `StoreError` if it cannot follow those before it."""
        if position >= self._saved.position:
            return
        match fact:
            case PopMoved(group, queues):
                known = tuple(moved for moved in queues if self._knows((group, moved.topic_id, moved.queue_id)))
                fact = PopMoved(group, known)
            case OffsetsCommitted(group, offsets, forced):
                known_offsets = [
                    item for item in offsets if forced or self._knows((group, item.topic_id, item.queue_id))
                ]
                fact = OffsetsCommitted(group, tuple(known_offsets), forced)
            case GroupStarted() | GroupDeleted() | TopicSet() | TopicDeleted():
                pass
            case _:
                return
        self._state.apply(fact, position)

    def findings(self, rows: Iterable[tuple[_Key, PopRow]]) -> Iterator[str]:
        """Yield a text for each queue that differs in the checkpoint, or is missing there."""
        left = {key: popped for key, popped in self._state.popped.items() if self._saved.topic_name(key[1])}
        for key, row in rows:
            expected = left.pop(key, None)
            if self._knows(key) and (expected is None or expected.row() != row):
                yield f"{self._name(key)} is not as the log has it: {_difference(expected, row)}"
        for key in left:
            yield f"{self._name(key)} is missing, but the log has it"

    def _knows(self, key: _Key) -> bool:
        return self._is_whole or key in self._state.committed

    def _name(self, key: _Key) -> str:
        return f"queue {self._saved.name_of(QueueKey(*key[1:]))} as group {key[0]} pops it"


def _difference(expected: PopQueue | None, row: PopRow) -> str:
    if expected is None:
        return "nothing was handed out"
    if expected.done != row.done:
        return f"it is settled to {expected.done}, not to {row.done}"
    runs = expected.runs
    for run, other in zip(runs, row.runs, strict=False):
        if run != other:
            return f"messages {run.first} to {run.end} are {run.state.name}, in hand-out {run.epoch}, try {run.tries}"
    return f"it has {len(runs)} runs, not {len(row.runs)}"


def popped_findings(state: State, rows: Iterable[tuple[_Key, PopRow]]) -> Iterator[str]:
    """Yield a text for each popped queue that cannot be as it is saved."""
    for (group, topic_id, queue_id), row in rows:
        queue = QueueKey(topic_id, queue_id)
        committed = state.committed.get((group, topic_id, queue_id), 0)
        if group.startswith(DEAD_LETTER_PREFIX):  # settled by operators: no group has offsets there
            committed = row.done
        reason = _mistake(row, state.end(queue).offset, committed)
        if reason:
            yield f"queue {state.name_of(queue)} as group {group} pops it: {reason}"


def _mistake(row: PopRow, end: int, committed: int) -> str:
    if row.done != committed:
        return f"it is settled to {row.done}, but the offset of the group is {committed}"
    following = row.done
    for run in row.runs:
        if run.first != following or run.end <= run.first:
            return f"messages {run.first} to {run.end} stand where those from {following} on should"
        if run.state is not RunState.FREE and run.state is not RunState.OUT and run.first == row.done:
            return f"messages {run.first} to {run.end} are done, but it is settled to {row.done} only"
        if run.state is RunState.OUT and not (run.tries and run.epoch):
            return f"messages {run.first} to {run.end} are in flight, but were never handed out"
        following = run.end
    return f"it was handed out to {following}, but ends at {end}" if following > end else ""
