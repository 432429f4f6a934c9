"""Work queues with FIFO message groups as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterator

from minimq_broker.features.feature import Feature, KernelState
from minimq_broker.features.work_queues.pop_runs import PopMoved
from minimq_broker.features.work_queues.serving import WorkServing
from minimq_broker.features.work_queues.table import NAME, PopTable, findings
from minimq_broker.features.work_queues.uncommitted_pops import UncommittedPops


class WorkQueues(Feature):
    name = NAME
    facts = (PopMoved,)
    table = PopTable
    scratch = UncommittedPops
    serve = WorkServing

    def findings(self, state: KernelState) -> Iterator[str]:
        return findings(state)
