"""Recovery of the state from checkpoint and log: at a start, and after the log was truncated."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from minimq_broker.commit.confirmation import Confirmation
from minimq_broker.features.registry import check_features, check_held, versions
from minimq_broker.log.checkpoint import Checkpoint, DamagedCheckpoint
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.entry import effect, stored_ms_of
from minimq_broker.log.lmdb_file import DamagedFile, set_aside
from minimq_broker.state.facts import FeatureUsed
from minimq_broker.state.queue_ends import BatchHeld
from minimq_broker.state.state import BatchApplied, QueueEnd, QueueKey, State
from minimq_common.errors import CopyNeeded, CorruptEntry

log = logging.getLogger(__name__)


def recover(checkpoint: Checkpoint, commit_log: CommitLog, confirmation: Confirmation | None = None) -> State:
    """Return the state of the checkpoint with all later entries applied."""
    started = time.monotonic()
    state = checkpoint.load()
    behind = commit_log.saved_to = state.position
    if not commit_log.start <= behind <= commit_log.end:
        raise DamagedFile(
            f"the checkpoint is at log position {behind}, but the log holds {commit_log.start} to {commit_log.end}: "
            "files of two directories were mixed, or some are missing; restore them together"
        )
    if confirmation is not None:  # a checkpoint has only confirmed entries
        confirmation.confirm(behind)
    ends: dict[QueueKey, QueueEnd] = {}
    applied = 0
    for position, entry in commit_log.entries(behind):
        if position != state.position:
            raise CorruptEntry(f"the log has a gap: entry at {position} where {state.position} was expected")
        change = effect(entry, position)
        if isinstance(change, BatchApplied):
            if change.place.base_offset != state.end(change.queue).offset:
                raise CorruptEntry(
                    f"the entry at position {position} goes on at offset {change.place.base_offset} of queue "
                    f"{change.queue}, which ends at {state.end(change.queue).offset}"
                )
            ends.setdefault(change.queue, state.end(change.queue))
        elif isinstance(change, BatchHeld):
            check_held(change, position)
        elif isinstance(change, FeatureUsed):
            check_features({change.name: change.version}, versions(), commit_log.path.parent, "this broker")
        state.apply(change, position + len(entry), stored_ms_of(entry))
        applied += 1
    if ends and confirmation is not None and state.position > confirmation.position:
        confirmation.cover(ends)  # readers see all of these entries once the last one is confirmed
        confirmation.add(state.position, [], ends.keys(), 0.0)
    log.info(
        "store: recovered topics=%d end=%d applied=%d seconds=%.3f",
        len(state.topics),
        state.position,
        applied,
        time.monotonic() - started,
    )
    return state


def open_state(
    path: Path, commit_log: CommitLog, confirmation: Confirmation | None = None, *, verified: bool = False
) -> tuple[Checkpoint, State]:
    """Open the checkpoint and recover. A damaged checkpoint is set aside, and rebuilt if the log is complete."""
    try:
        return _open_state(path, commit_log, confirmation, verified=verified)
    except DamagedCheckpoint as error:
        if commit_log.complete_from > 0:
            raise
        aside = set_aside(path)
        log.error(
            "store: a damaged checkpoint is set aside, and the state rebuilt from the log file=%s error=%s",
            aside,
            error.message,
        )
        return _open_state(path, commit_log, confirmation)


def _open_state(
    path: Path, commit_log: CommitLog, confirmation: Confirmation | None, *, verified: bool = False
) -> tuple[Checkpoint, State]:
    checkpoint = Checkpoint(path, verified=verified)
    try:
        state = recover(checkpoint, commit_log, confirmation)
        return checkpoint, _whole(commit_log, checkpoint, confirmation, state)
    except BaseException:
        checkpoint.close()
        raise


def _whole(commit_log: CommitLog, checkpoint: Checkpoint, confirmation: Confirmation | None, state: State) -> State:
    if state.whole == state.position:
        return state
    log.warning("store: deleting an incomplete atomic append from=%d", state.whole)
    return truncate(commit_log, checkpoint, confirmation, state, state.whole)


def truncate(
    commit_log: CommitLog, checkpoint: Checkpoint, confirmation: Confirmation | None, state: State, position: int
) -> State:
    """Delete all entries from a position on, and return the state without them.

    Deletes a whole atomic append rather than a part. Crash-safe: the directory can be opened and truncated again.
    """
    if position == state.position:
        return state
    if not commit_log.start <= position < state.position or not commit_log.begins_at(position):
        raise CopyNeeded(
            f"the log holds {commit_log.start} to {state.position} and cannot be cut at {position}, where no entry "
            "begins: copy everything again"
        )
    with commit_log.kept:
        if checkpoint.position > position and commit_log.complete_from > 0:
            raise CopyNeeded(
                f"the log is complete from {commit_log.complete_from} on and its state is saved at "
                f"{checkpoint.position}: that at {position} cannot be recovered, copy everything again"
            )
        confirmed = confirmation.position if confirmation is not None else position
        log.warning("store: truncated from=%d to=%d confirmed=%d", state.position, position, confirmed)
        if checkpoint.position > position:  # before the log, which must never end before its checkpoint
            checkpoint.clear()
        commit_log.truncate(position)
    if confirmation is not None:
        confirmation.cut(position)
    return _whole(commit_log, checkpoint, confirmation, recover(checkpoint, commit_log, confirmation))
