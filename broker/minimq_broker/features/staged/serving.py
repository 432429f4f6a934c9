"""Staged batches on the event loop of a broker: the calls of `Staged`, and the tasks of a master."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from minimq_broker.calls.administration import answering
from minimq_broker.calls.engine import Engine
from minimq_broker.features.feature import Handler, Role, Serving
from minimq_broker.features.staged.event_service import EventService
from minimq_broker.features.staged.flags import StagedFlags
from minimq_broker.features.staged.half_message_service import HalfMessageService
from minimq_broker.features.staged.staged_table import StagedTable
from minimq_broker.features.staged.staging import NAME, HalfOutcome, TransactionHold, TransactionId
from minimq_broker.features.staged.transaction_service import TransactionService
from minimq_common.errors import SystemBusy
from minimq_common.names import check_producer_group, check_transaction, half_name
from minimq_proto.v1 import broker_pb2, staged_pb2


class StagedServing(Serving):
    service = staged_pb2.DESCRIPTOR.services_by_name["Staged"]

    def __init__(self, engine: Engine, options: StagedFlags) -> None:
        self._engine = engine
        engine.rejections.counts["staged"] = 0
        self._transactions = TransactionService(engine, options.name, options.transaction_expiry_s)
        self._events = EventService(engine)
        self._halves = HalfMessageService(
            engine, options, lambda: self._events.clients, publish_rest=self._transactions.wake
        )
        self.tasks = (self._transactions, self._halves)

    def began(self, role: Role) -> dict[str, Handler]:
        self._events.retire()
        self._events = EventService(self._engine)
        self._transactions.wake()
        return {
            "CommitTransaction": answering(self._transactions.commit),
            "EndHalf": answering(self._halves.end),
            "ListHalves": answering(self._halves.list_open),
            "Events": self._events.serve,
        }

    def hold_of(self, request: broker_pb2.Append) -> TransactionHold:
        wire = request.transaction
        name = half_name(check_producer_group(wire.name)) if wire.is_half else check_transaction(wire.name)
        return TransactionHold(TransactionId(name, wire.number))

    def metrics(self, prefix: str) -> Iterator[Any]:
        from minimq_common.serving.metrics import counter, counters, gauge  # late: only metrics need it

        halves = f"{prefix}_half_transactions"
        store = self._engine.store
        with suppress(SystemBusy), store.reading():
            table: StagedTable = store.state.tables[NAME]
            yield gauge(f"{prefix}_staged_batches", "Batches of transactions that readers do not see yet.", table.count)
            yield gauge(f"{prefix}_staged_bytes", "Bytes of these in the CommitLog.", table.size)
            count = len(table.halves.open())
            yield gauge(halves, "Transactions with half messages that have not ended.", count)
        expired = "Transactions dropped in whole or in part, because they were not decided in time."
        yield counter(f"{prefix}_transactions_expired_total", expired, self._transactions.expired)
        undecided = "Those of which no producer has decided: end them by hand."
        yield gauge(f"{halves}_undecided", undecided, self._halves.undecided)
        ended = "Transactions with half messages that ended: committed, rolled back, or expired."
        counts = [((str(outcome),), self._halves.ended[outcome]) for outcome in HalfOutcome]
        yield counters(f"{halves}_ended_total", ended, ("outcome",), counts)
