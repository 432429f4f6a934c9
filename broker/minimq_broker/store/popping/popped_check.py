"""Verification of the popped queues that a checkpoint has: that their rows are such as decisions lead to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from minimq_broker.core.popping.pop_queue import PopRow
from minimq_broker.core.popping.pop_runs import RunState
from minimq_broker.core.state import QueueKey, State
from minimq_common.names import DEAD_LETTER_PREFIX


def popped_findings(state: State, rows: Iterable[tuple[tuple[str, int, int], PopRow]]) -> Iterator[str]:
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
