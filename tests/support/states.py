"""States of brokers as values that can be compared."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from minimq_broker.log.checkpoint import Checkpoint
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.recovery import recover
from minimq_broker.state.state import State

if TYPE_CHECKING:
    from minimq_broker.features.staged.staged_table import StagedTable


def rows(state: State) -> dict[str, Any]:
    """Return all that a state holds."""
    return {
        "position": state.position,
        "term": state.term,
        "terms": state.terms,
        "log_id": state.log_id,
        "permission": state.permission,
        "topics": state.topics.copy(),
        "ends": state.ends.copy(),
        "committed": state.committed.copy(),
        "started": state.started.copy(),
        "staged": staged_rows(state.tables["staged"]) if "staged" in state.tables else {},
        "producers": {number: msgspec.to_builtins(state.producers.states.get(number)) for number in state.producers},
    }


def staged_rows(table: StagedTable) -> dict[str, Any]:
    """Return all that a table of staged batches holds."""
    open_ones = [("open", *key) for key in (*table.transactions, *table.halves)]
    return {
        "open": {key: msgspec.to_builtins(table.row(key)) for key in sorted(open_ones)},
        "decisions": dict(table.transactions.ended.ends),
        "outcomes": dict(table.halves.ended.ends),
        "unpublished": {name: table.unpublished.of(name) for name in table.unpublished},
        "totals": (table.count, table.size),
    }


def rows_from_scratch(data: Path, folder: Path) -> dict[str, Any]:
    """Return what the log alone of a data directory adds up to; it has to begin at 0. A folder is made for that."""
    shutil.copytree(data / "commitlog", folder / "commitlog")
    with (
        closing(CommitLog(folder / "commitlog", 1 << 30)) as log,
        closing(Checkpoint(folder / "state.mdb")) as checkpoint,
    ):
        return rows(recover(checkpoint, log))
