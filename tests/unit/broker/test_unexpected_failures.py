"""Repeated work of a broker that fails unexpectedly logs one traceback, and not one for each try."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from minimq_broker.core.idle_groups import GroupExpiry
from minimq_broker.core.upkeep.retention import NOTHING_NEEDED
from minimq_broker.services.engine import Engine
from minimq_broker.services.held import transactions
from minimq_broker.services.held.transactions import TransactionService
from minimq_broker.services.session import SessionOptions, SessionService
from minimq_broker.services.upkeep.group_deletion import GroupDeletion, idle_groups
from minimq_broker.services.upkeep.retention import Retention
from support.replica_engine import with_engine
from support.stores import PATIENCE_S

FAILURES = 3
EXPIRY_MS = 20
Step = Callable[[], Coroutine[Any, Any, None]]


class Faulty:
    """A step that fails some times, and then goes its way."""

    def __init__(self, real: Step) -> None:
        self._real = real
        self._left = FAILURES
        self.works = asyncio.Event()

    async def __call__(self) -> None:
        if self._left:
            self._left -= 1
            raise RuntimeError("not thought of")
        await self._real()
        self.works.set()


async def retain(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    retention = Retention(engine.handle, engine.counters, 0.01, lambda: NOTHING_NEEDED)
    step = Faulty(retention._look)
    monkeypatch.setattr(retention, "_run", step)
    retention.start()
    await step.works.wait()
    await retention.stop()


async def publish(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_LOOK_S", 0.01)
    monkeypatch.setattr(transactions, "_EXPIRE_S", 0.0)
    service = TransactionService(engine.handle, engine.writes, engine.counters, "broker-a", 60.0)
    step = Faulty(service._once)
    monkeypatch.setattr(service, "_run", step)
    service.start()
    await step.works.wait()
    await service.stop()


async def look_for_idle_groups(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = SessionService(engine, SessionOptions(), "broker-a")
    deletion = GroupDeletion(engine, sessions, GroupExpiry(EXPIRY_MS), 0.0)
    step = Faulty(deletion.look)
    monkeypatch.setattr(deletion, "look", step)
    task = idle_groups(lambda: deletion)
    task.start()
    await step.works.wait()
    await asyncio.sleep(0)
    await task.stop()


@pytest.mark.parametrize("run", [retain, publish, look_for_idle_groups])
def test_it_is_one_traceback_and_a_line_when_it_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    run: Callable[[Engine, pytest.MonkeyPatch], Coroutine[Any, Any, None]],
) -> None:
    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        engine.begin(1)
        async with asyncio.timeout(PATIENCE_S):
            await run(engine, monkeypatch)

    with_engine(tmp_path, test)
    [first, last] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert first.exc_info
    assert "failures=" not in first.getMessage()
    assert f"failures={FAILURES} outage_s=" in last.getMessage()
    assert not last.exc_info
