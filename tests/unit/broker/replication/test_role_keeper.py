"""The effects of the controller's answers on the role of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from minimq_broker.log.clock import lease_clock
from minimq_broker.replication.in_sync import InSyncLimits
from minimq_broker.replication.roles import RoleKeeper
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from support.replica import until
from support.replica_engine import replica_engine

OWN = ReplicaReport(
    cluster="c",
    broker_name="broker-a",
    replica_id=0,
    run=7,
    address="127.0.0.1:1",
    founds=True,
    sync=False,
    min_in_sync=1,
)
LEASE_S = 1000.0
LEADING = ReplicaSet(
    cluster="c",
    broker_name="broker-a",
    term=2,
    master_id=0,
    master_run=7,
    in_sync=frozenset({0}),
    version=5,
    sync=False,
    min_in_sync=1,
    lease_s=LEASE_S,
    addresses={0: "127.0.0.1:1", 1: "127.0.0.1:2"},
)
#: The lease counts: another one could be elected.
LEADING_TWO = replace(LEADING, in_sync=frozenset({0, 1}))
FOLLOWING = replace(LEADING, master_id=1, master_run=8, in_sync=frozenset({1}))


class ToldController:
    """Answers each report when it is told what."""

    def __init__(self) -> None:
        self.reports: list[tuple[ReplicaReport, float]] = []
        self._answers: asyncio.Queue[ReplicaSet | None] = asyncio.Queue()

    async def report(self, report: ReplicaReport, *, wait_s: float = 0.0) -> ReplicaSet | None:
        self.reports.append((report, lease_clock()))
        return await self._answers.get()

    async def tell(self, record: ReplicaSet | None) -> ReplicaReport:
        """Answer the report there is, and return the next one: what must be done at once has been done then."""
        count = len(self.reports)
        self._answers.put_nowait(record)
        await until(lambda: len(self.reports) > count)
        return self.reports[-1][0]

    async def close(self) -> None:
        pass


@asynccontextmanager
async def keeper(path: Path, own: ReplicaReport) -> AsyncIterator[tuple[RoleKeeper, ToldController]]:
    async with replica_engine(path) as engine:
        controller = ToldController()
        roles = RoleKeeper(engine, own, cast("Any", controller), InSyncLimits(), lambda: None)
        engine.writes.rejection = roles.rejection
        engine.log_listeners.append(roles.log_grew)
        roles.start()
        await until(lambda: controller.reports)
        try:
            yield roles, controller
        finally:
            await roles.stop()


def with_keeper(
    path: Path, test: Callable[[RoleKeeper, ToldController], Awaitable[None]], own: ReplicaReport = OWN
) -> None:
    async def run() -> None:
        async with keeper(path, own) as (roles, controller):
            await test(roles, controller)

    asyncio.run(run())


def test_the_lease_is_counted_from_the_moment_before_the_report_was_sent(tmp_path: Path) -> None:
    late_s = 0.3

    async def test(roles: RoleKeeper, controller: ToldController) -> None:
        for record in (LEADING_TWO, replace(LEADING_TWO, version=6)):  # the first answer of a term, and the next one
            _, received_at = controller.reports[-1]
            await asyncio.sleep(late_s)
            await controller.tell(record)
            await roles.leads(2)
            assert roles.leadership is not None
            assert roles.leadership.record == record
            now = lease_clock()
            assert now + roles.leadership.lease_left_s <= received_at + LEASE_S

    with_keeper(tmp_path, test)


def test_an_old_record_is_not_taken_over_and_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(roles: RoleKeeper, controller: ToldController) -> None:
        await controller.tell(LEADING_TWO)
        await roles.leads(2)
        assert roles.leadership is not None
        lease_left_s = roles.leadership.lease_left_s
        for old in (
            replace(LEADING_TWO, version=4),
            replace(FOLLOWING, term=1, version=9),
            replace(LEADING_TWO, version=3),
        ):
            assert (await controller.tell(old)).known == LEADING_TWO
        assert roles.record == LEADING_TWO
        assert not roles.rejection(to_sender=True)
        assert roles.leadership.lease_left_s < lease_left_s
        assert caplog.text.count("is older than the one it sent before") == 1
        await controller.tell(replace(LEADING_TWO, version=6))
        await controller.tell(LEADING_TWO)
        assert caplog.text.count("is older than the one it sent before") == 2

    with_keeper(tmp_path, test)


def test_a_slave_acknowledges_a_former_term_no_more_though_its_role_cannot_change_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_busy = asyncio.Event()
    change = RoleKeeper._change

    async def takes_its_time(roles: RoleKeeper) -> None:
        if roles.record is not None and roles.record.version == 6:
            is_busy.set()
            await asyncio.Event().wait()
        await change(roles)

    monkeypatch.setattr(RoleKeeper, "_change", takes_its_time)

    async def test(roles: RoleKeeper, controller: ToldController) -> None:
        await controller.tell(FOLLOWING)
        await until(lambda: roles.follower)
        follower = roles.follower
        assert follower is not None
        await controller.tell(replace(FOLLOWING, version=6))
        await is_busy.wait()
        assert not follower.is_ended
        await controller.tell(replace(FOLLOWING, term=3, version=7))
        assert follower.is_ended
        assert roles.follower is follower

    with_keeper(tmp_path, test)
