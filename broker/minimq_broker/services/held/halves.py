"""Half messages: their ends, as producers, answers of checks and operators decide them, and what is open."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass

import grpc.aio

from minimq_broker.core.held.half_table import Half, HalfOutcome, described
from minimq_broker.core.held.staged_batches import TransactionId
from minimq_broker.services.append import MAX_WAITING
from minimq_broker.services.clock import now_ms
from minimq_broker.services.engine import Engine
from minimq_broker.store.entry import staged_batch
from minimq_broker.store.held.half_drafts import EndStep
from minimq_common.errors import (
    CorruptEntry,
    InternalError,
    InvalidArgument,
    MiniMQError,
    StoreError,
    TransactionExpired,
)
from minimq_common.names import check_producer_group, half_name
from minimq_common.security.access_rule import Resource
from minimq_common.security.caller import current_caller
from minimq_common.wire import rpc
from minimq_common.wire.bound_check import check_bounds
from minimq_common.wire.stream_writer import AnswerStream
from minimq_proto.v1 import halves_pb2

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[halves_pb2.EndHalvesRequest, halves_pb2.EndHalfResponse]

#: An end, and what is called once it is on disk, or cannot be.
_Waiting = tuple[EndStep, Callable[[MiniMQError | None], None]]
#: Ends in one commit.
_MOST_ENDS = 1_000
#: Batches of more bytes are not in lists, which have not more than so many bytes of batches.
_LISTED_BATCH_BYTES = 64 << 10
_LISTED_BYTES = 8 << 20
_WANTED = {
    halves_pb2.HALF_OUTCOME_COMMITTED: HalfOutcome.COMMITTED,
    halves_pb2.HALF_OUTCOME_ROLLED_BACK: HalfOutcome.ROLLED_BACK,
}
_TOLD = {
    HalfOutcome.COMMITTED: halves_pb2.HALF_OUTCOME_COMMITTED,
    HalfOutcome.ROLLED_BACK: halves_pb2.HALF_OUTCOME_ROLLED_BACK,
    HalfOutcome.EXPIRED: halves_pb2.HALF_OUTCOME_EXPIRED,
}


@dataclass(frozen=True, slots=True)
class HalfOptions:
    """When it is asked how transactions with half messages end.

    Attributes:
        check_after_s: seconds until it is asked for the first time.
        check_interval_s: seconds between one time and the next.
        checks: how often it is asked; then somebody has to decide by hand.
        expiry_s: seconds until those that nobody has decided on expire.
    """

    check_after_s: float
    check_interval_s: float
    checks: int
    expiry_s: float


class HalfService:
    """Calls about half messages."""

    def __init__(self, engine: Engine, options: HalfOptions, publish_rest: Callable[[], None]) -> None:
        self._engine = engine
        self._options = options
        self._publish_rest = publish_rest
        self._waiting: list[_Waiting] = []
        self._recording: asyncio.Task[None] | None = None

    # ---- ends -------------------------------------------------------------------------------------

    async def serve(self, requests: AsyncIterator[halves_pb2.EndHalvesRequest], context: Context) -> None:
        """Take ends and send answers until the client closes its side and all is answered."""
        engine = self._engine
        answers = AnswerStream(context, _encoded, engine.writes.soon, engine.unsent)
        await engine.streams.serve(self._receive(requests, answers), "endhalves-receiver", answers)

    async def _receive(self, requests: AsyncIterator[halves_pb2.EndHalvesRequest], answers: AnswerStream) -> None:
        async for request in requests:
            wrong = _breach(request)
            for end in request.ends:
                self._take(end, answers, wrong)
                answers.expected += 1
            await answers.fewer(MAX_WAITING)

    def _take(self, request: halves_pb2.EndHalfRequest, answers: AnswerStream, wrong: MiniMQError | None) -> None:
        request_id = request.request_id
        try:
            if wrong is not None:
                raise wrong
            current_caller().check(request, ("end-half", request.producer_group))
            step = _step_of(request)
            self._engine.writes.check(to_sender=True)  # nothing is committed that could not be published
        except MiniMQError as error:
            self._engine.refusals.note(error)
            answers.add(halves_pb2.EndHalfResult(request_id=request_id, failure=rpc.to_failure(error)))
            return

        def done(error: MiniMQError | None) -> None:
            if error is None and step.stands is not None:
                answers.add(halves_pb2.EndHalfResult(request_id=request_id, outcome=_TOLD[step.stands]))
                return
            failure = rpc.to_failure(error or _unknown(step.transaction))
            answers.add(halves_pb2.EndHalfResult(request_id=request_id, failure=failure))

        self._submit(step, done)

    async def end(self, steps: Sequence[EndStep]) -> None:
        """End transactions; return when that is on disk. Raises what `Writes.end_halves` raises."""
        recorded: asyncio.Queue[MiniMQError | None] = asyncio.Queue()
        for step in steps:
            self._submit(step, recorded.put_nowait)
        for _ in steps:
            if (error := await recorded.get()) is not None:
                raise error

    def _submit(self, step: EndStep, done: Callable[[MiniMQError | None], None]) -> None:
        self._waiting.append((step, done))
        if self._recording is None:
            self._recording = asyncio.create_task(self._record(), name="half-ends")

    async def _record(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting[:_MOST_ENDS], self._waiting[_MOST_ENDS:]
                try:
                    job = await self._engine.writes.end_halves([step for step, _ in taken])
                except Exception as error:  # noqa: BLE001 - whatever it is, all who wait must hear of it
                    _refuse(taken, error)
                    continue
                self._count(job.steps)
                if job.leaves_some:
                    self._publish_rest()
                for _, done in taken:
                    done(None)
        finally:
            self._recording = None

    def _count(self, steps: Collection[EndStep]) -> None:
        for step in steps:
            if step.is_new and step.stands is not None:
                self._engine.counters.halves_ended[str(step.stands)] += 1

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
            for transaction, half in self._engine.state.transactions.halves.halves.copy().items()
            if (not group or transaction.name == name)
            and number in (-1, transaction.number)
            and (group or caller.sees(Resource.TRANSACTION, transaction.name[1:]))
        ]
        found.sort(key=lambda item: item[1].position)
        response = halves_pb2.ListHalvesResponse(count=len(found))
        response.halves.extend(await asyncio.to_thread(self._described, found[: request.most]))
        if number >= 0 and not found:
            outcome = await self._outcome(TransactionId(name, number))
            if outcome is not None:
                response.outcome = _TOLD[outcome]
        return response

    async def _outcome(self, transaction: TransactionId) -> HalfOutcome | None:
        found: list[HalfOutcome | None] = []
        await self._engine.writes.record(lambda state: found.append(state.transactions.halves.outcome(transaction)))
        return found[0]

    def _described(self, found: Sequence[tuple[TransactionId, Half]]) -> list[halves_pb2.OpenHalf]:
        now, left = now_ms(), _LISTED_BYTES
        described_ones = []
        with self._engine.handle.reading() as store:
            for transaction, half in found:
                batches = half.in_order
                names = dict.fromkeys(store.state.topic_name(batch.topic_id) or "" for batch in batches)
                about = halves_pb2.OpenHalf(
                    producer_group=transaction.name[1:],
                    number=transaction.number,
                    topics=filter(None, names),
                    batches=len(batches),
                    age_ms=max(0, now - half.began_ms),
                    checks=half.checks,
                    is_undecided=half.checks >= self._options.checks,
                )
                about.expires_ms = max(0, int(self._options.expiry_s * 1000) - about.age_ms)
                first = batches[0]
                if first.size <= min(_LISTED_BATCH_BYTES, left):
                    try:
                        about.batch = bytes(staged_batch(store.log.entry_at(first.position), transaction.name, first))
                        left -= first.size
                    except (CorruptEntry, StoreError) as error:
                        log.warning("half messages: cannot be read position=%d error=%s", first.position, error)
                described_ones.append(about)
        return described_ones


def _encoded(results: list[halves_pb2.EndHalfResult]) -> bytes:
    return halves_pb2.EndHalfResponse(results=results).SerializeToString()


def _step_of(request: halves_pb2.EndHalfRequest) -> EndStep:
    wanted = _WANTED.get(request.outcome)
    if wanted is None:
        raise InvalidArgument(f"outcome {request.outcome} ends no transaction: commit it, or roll it back")
    name = half_name(check_producer_group(request.producer_group))
    return EndStep(TransactionId(name, request.number), wanted, request.batches)


def _unknown(transaction: TransactionId) -> MiniMQError:
    return TransactionExpired(
        f"the broker knows no {described(transaction)}: it ended so long ago that its outcome is forgotten, or the "
        "number is of another broker, or wrong"
    )


def _breach(request: halves_pb2.EndHalvesRequest) -> MiniMQError | None:
    try:
        check_bounds(request)
    except MiniMQError as error:
        return error
    return None


def _refuse(taken: Sequence[_Waiting], error: Exception) -> None:
    if not isinstance(error, MiniMQError):
        log.error("half messages: ends were not recorded count=%d", len(taken), exc_info=error)
        error = InternalError(f"the broker failed while it ended transactions: {error!r}")
    for _, done in taken:
        done(copy.copy(error))  # each its own: it keeps a traceback
