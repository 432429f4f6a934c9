"""Half messages: their ends, as producers, answers of checks and operators decide them, and what is open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minimq_broker.core.held.half_outcomes import HalfOutcome, described
from minimq_broker.core.held.staged_batches import OpenHalf, TransactionId
from minimq_broker.services.clock import now_ms
from minimq_broker.services.engine import Engine
from minimq_broker.store.entry import staged_batch
from minimq_broker.store.held.half_drafts import EndJob
from minimq_broker.store.message_store import MessageStore
from minimq_common.errors import CorruptEntry, InvalidArgument, MiniMQError, StoreError, TransactionExpired
from minimq_common.names import check_producer_group, half_name
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_proto.v1 import halves_pb2

log = logging.getLogger(__name__)

#: Bytes of the batches in one list, and of each of them; the list leaves out the others.
_LISTED_BATCH_BYTES = 64 << 10
_LISTED_BYTES = 8 << 20
_WANTED = {
    halves_pb2.HALF_OUTCOME_COMMITTED: HalfOutcome.COMMITTED,
    halves_pb2.HALF_OUTCOME_ROLLED_BACK: HalfOutcome.ROLLED_BACK,
}


@dataclass(frozen=True, slots=True)
class HalfOptions:
    """When producers are asked how transactions with half messages end. Times are in seconds."""

    check_after_s: float
    check_interval_s: float
    #: Questions about one transaction, after which it has to be decided by hand.
    checks: int
    expiry_s: float


class FirstBatch(NamedTuple):
    """The first batch of a transaction."""

    topic: str
    data: bytes


def first_batch(store: MessageStore, transaction: TransactionId, half: OpenHalf) -> FirstBatch | None:
    """Read the first batch of a transaction; None, and a warning in the log, if it is damaged."""
    first = half.stage.in_order[0]
    try:
        data = bytes(staged_batch(store.log.entry_at(first.position), transaction.name, first))
    except (CorruptEntry, StoreError) as error:
        log.warning("half messages: cannot be read of=%s error=%s", described(transaction), error.message)
        return None
    return FirstBatch(store.state.topic_name(first.topic_id) or "", data)


class HalfService:
    """Calls about half messages."""

    def __init__(self, engine: Engine, options: HalfOptions, publish_rest: Callable[[], None]) -> None:
        self._engine = engine
        self._options = options
        self._publish_rest = publish_rest

    # ---- ends -------------------------------------------------------------------------------------

    def end(self, end: halves_pb2.EndHalf, done: Callable[[HalfOutcome | MiniMQError], None]) -> None:
        """End a transaction; `done` is given the outcome that stands, or the error. Raises `MiniMQError`."""
        self._engine.writes.check(to_sender=True)  # nothing is committed that could not be published
        transaction = TransactionId(half_name(check_producer_group(end.producer_group)), end.number)
        wanted = _WANTED.get(end.outcome)
        if wanted is None:
            raise InvalidArgument(f"outcome {end.outcome} ends no transaction: commit it, or roll it back")

        def ended(job: EndJob) -> None:
            if job.error is None:
                self._ended(job)
            done(job.error or job.stands or _unknown(transaction))

        self._engine.writes.submit(EndJob(transaction, wanted, end.batches, done=ended))

    async def expire(self, transactions: Sequence[TransactionId]) -> list[TransactionId]:
        """Expire transactions that have not ended; return those that had not once that is on disk."""
        jobs = [EndJob(transaction, HalfOutcome.EXPIRED) for transaction in transactions]
        for job in await asyncio.gather(*map(self._engine.writes.written, jobs)):
            self._ended(job)
        return [job.transaction for job in jobs if job.is_new]

    def _ended(self, job: EndJob) -> None:
        if job.is_new:
            self._engine.counters.halves_ended[str(job.stands)] += 1
        if job.leaves_some:
            self._publish_rest()

    # ---- what is open -----------------------------------------------------------------------------

    async def list_open(self, request: halves_pb2.ListHalvesRequest) -> halves_pb2.ListHalvesResponse:
        """Return transactions that have not ended. Raises `InvalidArgument`, and `NotMaster`."""
        self._engine.writes.check()
        group, number = request.producer_group, request.number
        if number >= 0:
            check_producer_group(group)
        caller = current_caller()
        name = half_name(group)
        found = [
            (transaction, half)
            for transaction, half in self._engine.state.transactions.open_halves().items()
            if (not group or transaction.name == name)
            and number in (-1, transaction.number)
            and (group or caller.sees(Resource.TRANSACTION, transaction.name[1:]))
        ]
        found.sort(key=lambda item: item[1].stage.began_ms)
        response = halves_pb2.ListHalvesResponse(count=len(found))
        response.halves.extend(await asyncio.to_thread(self._described, found[: request.most]))
        if number >= 0 and not found:
            # By the writer: an end that is on its way to the disk counts.
            outcomes: list[HalfOutcome | None] = []
            transaction = TransactionId(name, number)
            await self._engine.writes.record(lambda state: outcomes.append(state.transactions.outcomes.of(transaction)))
            if outcomes[0] is not None:
                response.outcome = _wire(outcomes[0])
        return response

    def _described(self, found: Sequence[tuple[TransactionId, OpenHalf]]) -> list[halves_pb2.OpenHalf]:
        now, left = now_ms(), _LISTED_BYTES
        described_ones = []
        with self._engine.handle.reading() as store:
            for transaction, half in found:
                batches = half.stage.in_order
                names = dict.fromkeys(store.state.topic_name(batch.topic_id) or "" for batch in batches)
                checks = self._engine.tables.half_checks.get(transaction, 0)
                about = halves_pb2.OpenHalf(
                    producer_group=transaction.name[1:],
                    number=transaction.number,
                    topics=filter(None, names),
                    batches=len(batches),
                    age_ms=max(0, now - half.stage.began_ms),
                    checks=checks,
                    is_undecided=checks >= self._options.checks,
                )
                about.expires_ms = max(0, int(self._options.expiry_s * 1000) - about.age_ms)
                if batches and batches[0].size <= min(_LISTED_BATCH_BYTES, left):
                    first = first_batch(store, transaction, half)
                    about.batch = b"" if first is None else first.data
                    left -= batches[0].size
                described_ones.append(about)
        return described_ones


def _wire(outcome: HalfOutcome) -> halves_pb2.HalfOutcome.ValueType:
    return halves_pb2.HalfOutcome.ValueType(outcome)


def _unknown(transaction: TransactionId) -> MiniMQError:
    return TransactionExpired(
        f"the broker knows no {described(transaction)}: it ended so long ago that its outcome is forgotten, or the "
        "number is of another broker, or wrong"
    )
