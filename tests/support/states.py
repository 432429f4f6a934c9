"""States of brokers as values that can be compared."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from minimq_broker.features.staged.transactions import TransactionTable
from minimq_broker.log.checkpoint import Checkpoint
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.recovery import recover
from minimq_broker.state.state import State


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
        "transactions": transaction_rows(state.transactions),
        "producers": {number: msgspec.to_builtins(state.producers.states.get(number)) for number in state.producers},
    }


def transaction_rows(table: TransactionTable) -> dict[str, Any]:
    """Return all that a table of transactions holds."""
    names = [name for name, *_ in table.endings()]
    return {
        "staged": {key: msgspec.to_builtins(table.stage_row(*key)) for key in sorted(table)},
        "ended": {name: msgspec.to_builtins(table.ending(name)) for name in names},
        "unpublished": sorted(table.unpublished),
        "totals": (table.count, table.size),
        "outcomes": dict(table.outcomes._ends),
    }


def rows_from_scratch(data: Path, folder: Path) -> dict[str, Any]:
    """Return what the log alone of a data directory adds up to; it has to begin at 0. A folder is made for that."""
    shutil.copytree(data / "commitlog", folder / "commitlog")
    with (
        closing(CommitLog(folder / "commitlog", 1 << 30)) as log,
        closing(Checkpoint(folder / "state.mdb")) as checkpoint,
    ):
        return rows(recover(checkpoint, log))
