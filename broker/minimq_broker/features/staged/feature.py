"""Staged batches as a feature of the broker."""

from __future__ import annotations

from minimq_broker.features.feature import Feature
from minimq_broker.features.staged.facts import HalfEnded, PublicationSkipped, TransactionDecided, TransactionsExpired
from minimq_broker.features.staged.jobs import UncommittedStages
from minimq_broker.features.staged.pins import StagedPins
from minimq_broker.features.staged.serving import StagedServing
from minimq_broker.features.staged.staged_table import StagedTable
from minimq_broker.features.staged.staging import NAME, TAG, staged_in
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.state.queue_ends import BatchHeld
from minimq_broker.state.state import State


class StagedBatches(Feature):
    name = NAME
    tag = TAG
    hold_field = "transaction"
    facts = (TransactionDecided, TransactionsExpired, HalfEnded, PublicationSkipped)
    table = StagedTable
    scratch = UncommittedStages
    serve = StagedServing

    def check_held(self, held: BatchHeld) -> None:
        staged_in(held)

    def pins(self, state: State, log: CommitLog) -> StagedPins:
        return StagedPins(state.tables[NAME].saved_positions)
