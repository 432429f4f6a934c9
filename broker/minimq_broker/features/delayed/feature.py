"""Delayed messages as a feature of the broker."""

from __future__ import annotations

from minimq_broker.features.delayed.delaying import DelayServing
from minimq_broker.features.delayed.due_index import DelayPins
from minimq_broker.features.delayed.table import NAME, BatchesRecalled, DelaysSetBack, DelayTable, DueSkipped
from minimq_broker.features.feature import Feature
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.state.state import State


class Delayed(Feature):
    name = NAME
    facts = (BatchesRecalled, DueSkipped, DelaysSetBack)
    table = DelayTable
    serve = DelayServing

    def pins(self, state: State, log: CommitLog) -> DelayPins:
        return DelayPins(log, state.tables[NAME].saved_mark)
