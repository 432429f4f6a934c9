"""A controller remembers and awaits a bounded amount, and no flood costs a master its lease."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minimq_common.errors import InvalidArgument, SystemBusy
from minimq_common.replicas.election import Bootstrap
from minimq_common.replicas.replica_set import MAX_REPLICAS, check_record
from minimq_nameserver.controller import service as service_module
from minimq_nameserver.controller import table as table_module
from minimq_nameserver.controller.service import ControllerService
from minimq_nameserver.controller.table import ControllerTable
from support.reports import report

KEY = ("default", "broker-a")
LEASE_S = 3.0


def founded() -> ControllerTable:
    """A table in which replica 0 leads broker-a."""
    table = ControllerTable([], LEASE_S, now=0)
    record = table.found(report(founds=True), now=0)
    assert record is not None
    table.adopt(record, now=0)
    return table


def hear(table: ControllerTable, replica_id: int, now: float, address: str = "") -> None:
    said = report(replica_id, address=address) if address else report(replica_id)
    table.adopt(table.hear(said, now), now)


def test_false_replicas_cost_no_master_its_lease() -> None:
    table = founded()
    rejected = 0
    for number in range(2_000):
        now = number / 10
        try:
            hear(table, 1 + number, now)
        except (InvalidArgument, SystemBusy):
            rejected += 1
        hear(table, 0, now)
        record = table.record(KEY)
        assert record is not None
        check_record(record)  # as the replicas do that are told of it
        assert (record.term, record.master_id) == (1, 0)
        assert table._liveness[KEY].lease_age(now) < LEASE_S
    assert rejected > 2_000 - MAX_REPLICAS
    assert len(table._liveness[KEY]._heard) <= MAX_REPLICAS


def test_there_are_no_more_records_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "MAX_REPLICA_SETS", 1)
    table = founded()
    with pytest.raises(SystemBusy, match="records of 1 brokers"):
        table.found(report(broker_name="broker-b", founds=True), now=0)
    hear(table, 0, now=1)


def test_a_set_without_a_record_has_no_more_replicas_than_there_may_be() -> None:
    founding = Bootstrap(LEASE_S)
    for number in range(MAX_REPLICAS):
        founding.hear(report(number), now=0)
    with pytest.raises(InvalidArgument, match="128 replicas"):
        founding.hear(report(MAX_REPLICAS), now=0)
    founding.hear(report(0), now=1)
    founding.hear(report(MAX_REPLICAS), now=100)


def test_of_too_many_held_reports_the_oldest_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "MAX_HELD_REPORTS", 10)

    async def run() -> None:
        service = ControllerService(tmp_path, LEASE_S)
        holding = [
            asyncio.create_task(service._hold(report(broker_name=f"broker-{number}", founds=False), 3600))
            for number in range(30)
        ]
        async with asyncio.timeout(20):
            await asyncio.gather(*holding[:20])
        assert not any(task.done() for task in holding[20:])
        assert len(service._held) == len(service._news) == 10
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        assert not service._held
        assert not service._news
        await service.close()

    asyncio.run(run())
