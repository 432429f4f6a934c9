"""The end of transactions: records the decisions of clients and publishes committed batches, even after failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from minimq_broker.calls.engine import Engine
from minimq_broker.features.staged.facts import StagedSequences, TransactionDecided, TransactionsExpired
from minimq_broker.features.staged.jobs import DecideJob, PublishJob
from minimq_broker.features.staged.staged_table import StagedTable
from minimq_broker.features.staged.staging import NAME, size_of
from minimq_broker.state.facts import Fact
from minimq_broker.state.state import State
from minimq_common.errors import StoreError, StoreFull
from minimq_common.names import check_transaction
from minimq_common.serving.periodic import PeriodicTask
from minimq_proto.v1 import staged_pb2

log = logging.getLogger(__name__)

#: Interval of checks for committed batches that no call publishes.
_CHECK_INTERVAL_S = 1.0
#: Maximum time between checks for expired transactions.
_EXPIRE_S = 10.0
#: Maximum transactions that one fact expires, and that the log names.
_MAX_EXPIRED = 1000
_MAX_NAME = 5


class TransactionService(PeriodicTask):
    """The calls about transactions. At a master it also publishes decided ones, and drops those not decided in time."""

    def __init__(self, engine: Engine, broker_name: str, expiry_s: float) -> None:
        self._engine, self._writes = engine, engine.writes
        self._broker_name, self._expiry_s = broker_name, expiry_s
        #: Transactions that have expired since the start of the broker.
        self.expired = 0
        self._expire_at = 0.0
        super().__init__("transactions", self._once, min(_CHECK_INTERVAL_S, expiry_s), log, at_once=True)

    @property
    def _table(self) -> StagedTable:
        table: StagedTable = self._engine.store.state.tables[NAME]
        return table

    async def commit(self, request: staged_pb2.CommitTransactionRequest) -> staged_pb2.CommitTransactionResponse:
        """Publish the transaction of the decision, if there is one, and return what is decided and staged here."""
        name = check_transaction(request.name)
        if request.HasField("decision"):
            decision = request.decision
            parts = _parts(part for part in decision.parts if part.broker_name == self._broker_name)
            fact = TransactionDecided(name, decision.number, decision.SerializeToString(), parts)
            await self._publish(DecideJob(name, fact, self._broker_name))
        return await self._describe(name, TransactionDecided(name, request.number, b"", _parts(request.batches)))

    async def _publish(self, job: PublishJob) -> int:
        """Publish batches with this job, then the rest of its name; return how many are published."""
        published = 0
        while True:
            await self._writes.written(job)
            published += job.published
            if not job.has_more:
                return published
            job = PublishJob(job.name)

    async def _describe(self, name: str, about_to: TransactionDecided) -> staged_pb2.CommitTransactionResponse:
        """Return the decision about the latest transaction of a name, once the decision can no longer be lost."""
        response = staged_pb2.CommitTransactionResponse()

        def look(state: State) -> None:
            table: StagedTable = state.tables[NAME]
            decision = table.transactions.decision(name)
            if decision is not None:
                response.decision.ParseFromString(decision.decision)
            staged = [*table.transactions.of_name(name), *table.unpublished.of(name)]
            response.staged_batches, response.staged_bytes = len(staged), size_of(staged)
            if decision is None or about_to.number > decision.result:
                response.missing_batches = table.transactions.named(about_to).count(None)

        await self._writes.record(look)
        return response

    async def _once(self) -> None:
        if not self._engine.store.writer.leads:
            return
        try:
            await self._publish_all()
        finally:
            now = time.monotonic()
            if now >= self._expire_at:
                self._expire_at = now + min(_EXPIRE_S, self._expiry_s / 2)
                await self._expire()

    async def _publish_all(self) -> None:
        unreadable: StoreError | None = None
        for name in self._table.unpublished:
            try:
                published = await self._publish(PublishJob(name))
            except StoreFull:  # the others would fail too
                raise
            except StoreError as error:
                unreadable = error
            else:
                log.info("transactions: published name=%s batches=%d", name, published)
        if unreadable is not None:
            raise unreadable

    async def _expire(self) -> None:
        before_ms = self._engine.clock.now_ms() - int(self._expiry_s * 1000)

        def decide(state: State) -> Fact | None:
            found = state.tables[NAME].transactions.older(before_ms, _MAX_EXPIRED)
            return TransactionsExpired(found) if found else None

        if not self._table.count:
            return
        while isinstance(fact := await self._writes.record(decide), TransactionsExpired):
            self.expired += len(fact.transactions)
            log.warning(
                "transactions: dropped undecided batches that are older than seconds=%g count=%d first=%s",
                self._expiry_s,
                len(fact.transactions),
                ", ".join(f"{name} number {number}" for name, number in fact.transactions[:_MAX_NAME]),
            )


def _parts(batches: Iterable[staged_pb2.StagedPart]) -> tuple[StagedSequences, ...]:
    return tuple(StagedSequences(item.producer_id, tuple(item.sequences)) for item in batches)
