"""The controller on a real file, without a network between."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from minimq_common.replicas.replica_set import ReplicaSet
from minimq_common.serving import periodic
from minimq_nameserver.controller.decisions import DecisionFile
from minimq_nameserver.controller.service import ControllerService
from minimq_nameserver.controller.table import ControllerTable

TIMEOUT_S = 20.0


class SlowDisk:
    """Holds what is written to the file of a controller until it is let go, and counts the writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes = 0
        self.begun = threading.Event()
        self.may_go = threading.Event()
        save = DecisionFile.save

        def held(file: DecisionFile, record: ReplicaSet) -> None:
            self.begun.set()
            assert self.may_go.wait(TIMEOUT_S)
            self.writes += 1
            save(file, record)

        monkeypatch.setattr(DecisionFile, "save", held)


async def begun(disk: SlowDisk) -> None:
    assert await asyncio.to_thread(disk.begun.wait, TIMEOUT_S)


def test_elections_go_on_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(periodic, "_RETRY_S", 0.01)
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
        async with asyncio.timeout(TIMEOUT_S):
            await again.wait()
        await service.stop()
        await service.close()

    asyncio.run(run())
    [failed, *_] = caplog.records
    assert failed.exc_info
    assert [message.partition(" error=")[0] for message in caplog.messages[:2]] == [
        "elections: failed, will try again",
        "elections: works again failures=3 outage_s=" + caplog.messages[1].rpartition("=")[2],
    ]
