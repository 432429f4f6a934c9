"""The work of a broker for transactions by itself, with a real engine and store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minimq_broker.calls.engine import Engine
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.features.staged import transaction_service as transactions
from minimq_broker.features.staged.facts import StagedSequences, TransactionDecided
from minimq_broker.features.staged.staged_table import StagedTable
from minimq_broker.features.staged.staging import TransactionHold, TransactionId
from minimq_broker.features.staged.transaction_service import TransactionService
from minimq_broker.state.state import QueueKey
from minimq_common.batch import header as batch
from minimq_common.errors import NotEnoughReplicas
from minimq_proto.v1 import staged_pb2
from support.kernel_stores import TIMEOUT_S, numbered_batch
from support.raw_transactions import decision
from support.replica_engine import make_topic, with_engine
from support.waiting import wait_until
from support.woken import Woken


def table_of(engine: Engine) -> StagedTable:
    table: StagedTable = engine.store.state.tables["staged"]
    return table


async def stage(engine: Engine, number: int, sequence: int, name: str = "x", body: bytes = b"x") -> None:
    data = numbered_batch(7, sequence, body)
    answer: asyncio.Queue[AppendJob] = asyncio.Queue()
    hold = TransactionHold(TransactionId(name, number))
    await engine.writes.append(AppendJob("t", 0, data, batch.read_header(data), hold, done=answer.put_nowait))
    job = await answer.get()
    assert job.error is None


async def stage_and_decide(engine: Engine) -> QueueKey:
    """Decide on a transaction of two batches, as a broker does that dies then."""
    queue = await make_topic(engine)
    await stage(engine, 0, 0)
    await stage(engine, 0, 1)
    decided = TransactionDecided("x", 0, b"", (StagedSequences(7, (0, 1)),))
    await engine.writes.record(lambda _: decided)
    return queue


async def until_published(engine: Engine, queue: QueueKey, messages: int = 2) -> None:
    while engine.store.bounds(queue)[1] < messages:
        grown = Woken()
        engine.arrivals.add(queue, grown)
        await asyncio.wait_for(grown.wait(), TIMEOUT_S)
    assert not [*table_of(engine).unpublished]
    assert engine.store.bounds(queue) == (0, messages)


def test_what_is_decided_is_published_by_whoever_leads_next(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        service = TransactionService(engine, "broker-a", 60.0)
        service.start()
        await engine.lead(1, waits_for_replicas=False)
        await engine.follow()
        await asyncio.sleep(0)
        await engine.lead(2, waits_for_replicas=False)
        queue = await stage_and_decide(engine)
        service.wake()
        await until_published(engine, queue)
        await service.stop()
        await service.stop()

    with_engine(tmp_path, test)


def test_a_decision_is_answered_only_while_there_are_enough(tmp_path: Path) -> None:
    """The replicas that are left when it is written may be too few, though all of them have it."""

    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        queue = await make_topic(engine)
        await stage(engine, 0, 0)

        def rejection(*, to_sender: bool) -> NotEnoughReplicas | None:
            is_decided = table_of(engine).transactions.decision("x") is not None
            return NotEnoughReplicas("too few for this test") if is_decided and to_sender else None

        engine.writes.rejection = rejection
        service = TransactionService(engine, "broker-a", 60.0)
        wanted = decision(0, {"broker-a": {7: [0]}})
        request = staged_pb2.CommitTransactionRequest(name="x", decision=wanted)
        with pytest.raises(NotEnoughReplicas):
            await service.commit(request)
        engine.writes.rejection = lambda *, to_sender: None
        assert (await service.commit(request)).decision == wanted
        assert engine.store.bounds(queue) == (0, 1)

    with_engine(tmp_path, test)


def test_the_answer_waits_for_the_replicas(tmp_path: Path) -> None:
    """Neither a decision nor what is published may be told of before it is confirmed."""

    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        queue = await make_topic(engine)
        await stage(engine, 0, 0)
        await engine.follow()
        await engine.lead(2, waits_for_replicas=True)
        service = TransactionService(engine, "broker-a", 60.0)
        wanted = decision(0, {"broker-a": {7: [0]}})
        request = staged_pb2.CommitTransactionRequest(name="x", decision=wanted)
        commit = asyncio.create_task(service.commit(request))
        look = asyncio.create_task(service.commit(staged_pb2.CommitTransactionRequest(name="x")))
        await asyncio.to_thread(wait_until, lambda: table_of(engine).transactions.decision("x"), TIMEOUT_S)
        await asyncio.to_thread(engine.store.writer.call, lambda: None)  # behind the look
        await asyncio.sleep(0)
        assert not commit.done()
        assert not look.done()
        assert engine.store.bounds(queue) == (0, 0)
        engine.store.confirmation.confirm(engine.store.end)
        assert (await look).decision == wanted
        await asyncio.to_thread(wait_until, lambda: engine.store.state.end(queue).offset, TIMEOUT_S)
        assert not commit.done()
        engine.store.confirmation.confirm(engine.store.end)
        assert (await commit).decision == wanted
        assert engine.store.bounds(queue) == (0, 1)

    with_engine(tmp_path, test)


# ---- what expires, by clocks of the test -----------------------------------------------------------


def test_what_is_staged_expires_when_it_is_older_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_EXPIRE_S", 0.0)

    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        await make_topic(engine)
        for sequence, name in enumerate("xxy"):
            await stage(engine, 0, sequence, name)
        found = table_of(engine).transactions.find(TransactionId("x", 0), 7, 0)
        assert found is not None
        now_ms = found.stored_ms + 60_000
        looks: asyncio.Queue[None] = asyncio.Queue()

        def clock_ms() -> int:
            looks.put_nowait(None)
            return now_ms

        monkeypatch.setattr(engine.clock, "now_ms", clock_ms)

        service = TransactionService(engine, "broker-a", 60.0)
        service.start()
        for _ in range(3):
            await looks.get()
            service.wake()
        assert table_of(engine).count == 3
        now_ms += 60_000
        while service.expired < 2:
            await looks.get()
            service.wake()
        await service.stop()
        assert table_of(engine).count == 0
        assert service.expired == 2  # transactions, of three batches

    with_engine(tmp_path, test)
