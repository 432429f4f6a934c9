"""The view of one process when etcd goes back to an older state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from minimq_broker.replication.etcd_controller import EtcdResult, EtcdView, Stored
from minimq_common.replicas.election import found
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from support.reports import report

PREFIX = "minimq/default/broker-a/"
LEASE_S = 100.0


class ShownLink:
    """Shows what a test says that etcd holds."""

    def __init__(self) -> None:
        self.shown = EtcdResult(succeeded=True, stored={})
        self.puts: list[Mapping[str, bytes]] = []
        self._under_way = 0

    def show(self, record: ReplicaSet, at: int, **reports: int) -> None:
        """Show a record at a revision, and reports, by the letter and the id of the replica, at theirs."""
        values: dict[str, tuple[ReplicaSet | ReplicaReport, int]] = {"record": (record, at)}
        values |= {
            f"reports/{name[1:]}": (report(int(name[1:]), last_term=1), revision) for name, revision in reports.items()
        }
        stored = {PREFIX + key: Stored(msgspec.json.encode(value), put) for key, (value, put) in values.items()}
        self.shown = EtcdResult(succeeded=True, stored=stored)

    async def transact(self, _expected: Mapping[str, int], puts: Mapping[str, bytes], _prefix: str) -> EtcdResult:
        assert not self._under_way, "two transactions of one view may overtake each other"
        self._under_way += 1
        await asyncio.sleep(0.01)
        self._under_way -= 1
        self.puts.append(puts)
        return self.shown


def record() -> ReplicaSet:
    first = found(report(), LEASE_S)
    assert first is not None
    return replace(first, in_sync=frozenset({0, 1}), version=5)


def test_after_etcd_went_back_nobody_counts_as_alive_for_what_a_backup_holds(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        link = ShownLink()
        view = EtcdView(cast("Any", link), ("default", "broker-a"), LEASE_S)
        link.show(record(), 10, r0=11, r1=12)
        await view.look()
        link.show(record(), 10, r0=20, r1=21)
        await view.look()
        assert view.is_alive(0)
        assert view.is_alive(1)
        assert not caplog.text
        older = replace(record(), version=4)
        link.show(older, 9, r0=11, r1=12)
        await view.look()
        assert view.record == older  # neither is it passed over, nor is what was seen before gone on with
        assert not view.is_alive(0)
        assert not view.is_alive(1)
        assert caplog.text.count("it was emptied or restored from a backup") == 1
        link.show(older, 9, r0=13, r1=12)
        await view.look()
        assert view.is_alive(0)
        assert not view.is_alive(1)

    asyncio.run(test())
