"""What a log adds up to: the state after a start, and after the end of the log was cut off."""

from __future__ import annotations

import logging
import time

from minimq_broker.core.state import BatchApplied, State
from minimq_broker.store.checkpoint import Checkpoint
from minimq_broker.store.commit_log import CommitLog
from minimq_broker.store.confirmation import Confirmation
from minimq_broker.store.entry import effect
from minimq_common.errors import CopyNeeded, CorruptEntry, StoreError

log = logging.getLogger(__name__)


def recover(checkpoint: Checkpoint, commit_log: CommitLog, confirmation: Confirmation | None = None) -> State:
    """Return the state: the checkpoint, and on top of it the entries that came later.

    Args:
        checkpoint: what was saved.
        commit_log: the entries.
        confirmation: gets what came later, which may not be confirmed; None when nothing has to be.

    Raises:
        CorruptEntry: one of those entries does not match its checksum.
        StoreError: the checkpoint is of another log.
    """
    started = time.monotonic()
    state = checkpoint.load()
    behind = state.position
    if not commit_log.start <= behind <= commit_log.end:
        raise StoreError(
            f"the checkpoint is at log position {behind}, but the log holds {commit_log.start} to {commit_log.end}: "
            "files of two directories were mixed, or some are missing; restore them together"
        )
    if confirmation is not None:  # nothing else is ever saved
        confirmation.confirm(behind)
    applied = 0
    for position, entry in commit_log.entries(behind):
        if position != state.position:
            raise CorruptEntry(f"the log has a gap: entry at {position} where {state.position} was expected")
        change, end = effect(entry, position), position + len(entry)
        if confirmation is not None and end > confirmation.position and isinstance(change, BatchApplied):
            confirmation.cover({change.queue: state.end(change.queue)})
            state.apply(change, end)
            confirmation.add(end, [], {change.queue}, started)
        else:
            state.apply(change, end)
        applied += 1
    log.info(
        "store: recovered topics=%d end=%d applied=%d seconds=%.3f",
        len(state.topics),
        state.position,
        applied,
        time.monotonic() - started,
    )
    return state


def truncate(
    commit_log: CommitLog, checkpoint: Checkpoint, confirmation: Confirmation, state: State, position: int
) -> State:
    """Delete all entries from a position on, and return the state without them.

    Whatever interrupts it, the directory can be opened, and truncated again.

    Raises:
        CopyNeeded: nothing was changed, as the state at that position cannot be found any more.
    """
    if position == state.position:
        return state
    if not commit_log.start <= position < state.position or not commit_log.begins_at(position):
        raise CopyNeeded(
            f"the log holds {commit_log.start} to {state.position} and cannot be cut at {position}, where no entry "
            "begins: copy everything anew"
        )
    with commit_log.kept():
        if checkpoint.position > position and commit_log.start > 0:
            raise CopyNeeded(
                f"the log begins at {commit_log.start} and its state is saved at {checkpoint.position}: the one at "
                f"{position} cannot be found, copy everything anew"
            )
        log.warning("store: truncated from=%d to=%d confirmed=%d", state.position, position, confirmation.position)
        if checkpoint.position > position:  # ahead of the log: a checkpoint beyond its end would be of another one
            checkpoint.clear()
        commit_log.truncate(position)
    confirmation.cut(position)
    return recover(checkpoint, commit_log, confirmation)
