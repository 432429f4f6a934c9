"""Checks of half messages, and their expiry, with a real engine and store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minimq_broker.assembly import BrokerOptions
from minimq_broker.calls.engine import Engine
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.features.staged.half_message_service import HALF_MESSAGE_EXPIRY_S, HalfMessageService
from minimq_broker.features.staged.staging import HalfOutcome, Stage, TransactionHold, TransactionId
from minimq_common.batch import header as batch
from minimq_common.names import half_name
from support.kernel_stores import numbered_batch
from support.replica_engine import make_topic, with_engine

OPTIONS = BrokerOptions(check_back_after_s=1.0, max_check_backs=3)
HALF = TransactionId(half_name("shop"), 17)


async def stage(engine: Engine) -> int:
    """Stage a half message; return when that was, in ms since 1970."""
    await make_topic(engine)
    data = numbered_batch(7, 1, b"x")
    answer: asyncio.Queue[AppendJob] = asyncio.Queue()
    await engine.writes.append(
        AppendJob("t", 0, data, batch.read_header(data), TransactionHold(HALF), done=answer.put_nowait)
    )
    assert (await answer.get()).error is None
    stage: Stage = engine.store.state.tables["staged"].halves.open()[HALF].stage
    return stage.began_ms


def test_a_half_message_expires_after_its_time_and_by_the_clock_that_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(engine: Engine) -> None:
        checks = HalfMessageService(engine, OPTIONS, tuple, lambda: None)
        await engine.lead(1, waits_for_replicas=False)
        began_ms = await stage(engine)
        halves = engine.store.state.tables["staged"].halves
        expires_ms = began_ms + int(HALF_MESSAGE_EXPIRY_S * 1000)
        monkeypatch.setattr(engine.clock, "now_ms", lambda: expires_ms)
        await checks._look()
        assert HALF in halves.open()
        # The clock of the day is not asked: it may be wrong.
        monkeypatch.setattr(engine.clock, "now_ms", lambda: expires_ms + 1)
        await checks._look()
        assert HALF not in halves.open()
        assert halves.outcome(HALF) is HalfOutcome.EXPIRED

    with_engine(tmp_path, test)
