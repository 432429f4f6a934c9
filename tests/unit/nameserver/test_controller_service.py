"""The controller on a real file, without a network between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minimq_common.replica_set import ReplicaSet
from minimq_nameserver.controller.service import ControllerService
from minimq_nameserver.controller.table import ControllerTable

PATIENCE_S = 20.0


def test_elections_go_on_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = ControllerTable.elections
    faults = iter([RuntimeError("not thought of")])

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
        service.close()

    asyncio.run(run())
    assert "the elections failed, and are tried again" in caplog.text
    assert "RuntimeError: not thought of" in caplog.text
