"""The controller on a real file, without a network between."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from minimq_common.errors import StoreError
from minimq_common.replicas.replica_set import ReplicaSet
from minimq_nameserver.controller import decisions
from minimq_nameserver.controller.service import ControllerService
from minimq_nameserver.controller.table import ControllerTable
from support.reports import report

PATIENCE_S = 20.0


def test_elections_go_on_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = ControllerTable.elections
    faults = iter([RuntimeError("not thought of")] * 3)

    async def run() -> None:
        again = asyncio.Event()

        def elections(table: ControllerTable, now: float) -> list[ReplicaSet]:
            for fault in faults:
                raise fault
            again.set()
            return list(real(table, now))

        monkeypatch.setattr(ControllerTable, "elections", elections)
        service = ControllerService(tmp_path, lease_s=0.1)
        service.start()
        async with asyncio.timeout(PATIENCE_S):
            await again.wait()
        await service.stop()
        await service.close()

    asyncio.run(run())
    [failed, *_] = caplog.records
    assert failed.exc_info
    assert [message.partition(" error=")[0] for message in caplog.messages[:2]] == [
        "elections: not now, will try again",
        "elections: goes on failures=3 outage_s=" + caplog.messages[1].rpartition("=")[2],
    ]


def test_a_file_that_is_full_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decisions, "_MAP_BYTES", 1 << 16)

    async def run() -> None:
        service = ControllerService(tmp_path, lease_s=3.0)
        refused = None
        refused = report()
        for number in range(1000):
            refused = report(broker_name=f"broker-{number}")
            try:
                await service._receive(refused)
            except StoreError:
                break
        for _ in range(20):
            with pytest.raises(StoreError):
                await service._receive(refused)
        await service.close()

    asyncio.run(run())
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "a decision was not made broker=" in record.getMessage()
    assert "decisions.mdb is full" in record.getMessage()
    assert record.exc_info is None
