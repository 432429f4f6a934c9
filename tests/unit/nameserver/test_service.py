"""The calls of a name server, without a network between."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from minimq_common.errors import BrokerConflict
from minimq_common.model import Permission
from minimq_nameserver import loop_share
from minimq_nameserver.broker_state import BrokerState
from minimq_nameserver.route_table import Change, RouteTable
from minimq_nameserver.service import NameServerService
from minimq_proto.v1 import nameserver_pb2


def test_the_time_of_a_conflict_is_the_same_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    holder, refused = (
        BrokerState("default", "broker-a", 0, f"{name}:1", 1, Permission.READ_WRITE, {}) for name in "ab"
    )
    now, day_s = 100.0, 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: day_s)
    service = NameServerService(RouteTable(10, 100, 10), lambda: now)

    def times() -> tuple[int, int]:
        answer = asyncio.run(service.GetCluster(nameserver_pb2.GetClusterRequest(), cast("Any", None)))
        [conflict] = nameserver_pb2.GetClusterResponse.FromString(answer).conflicts
        return conflict.first_ms, conflict.last_ms

    now += 1
    service.registrations.note_conflict(refused, holder, BrokerConflict("two of them"))
    first = times()
    assert first == (1_800_000_001_000, 1_800_000_001_000)
    now, day_s = now + 5.0, day_s + 7.25  # the time of day is adjusted meanwhile
    assert times() == first


def test_others_have_rounds_of_the_loop_between_registrations_that_come_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_share, "SLICE_S", -1.0)  # as on a machine that needs as long for each of them
    rounds = 0
    registered_at: list[int] = []

    class Table(RouteTable):
        def register(self, session: int, state: BrokerState, now: float) -> Change:
            registered_at.append(rounds)
            return super().register(session, state, now)

    async def count() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    async def requests(number: int) -> AsyncIterator[nameserver_pb2.RegisterRequest]:
        name = f"broker-{number}"
        yield nameserver_pb2.RegisterRequest(cluster="default", broker_name=name, address=f"{name}:1", permission=6)

    class Stream:
        async def write(self, _: object) -> None:
            pass

    async def run() -> None:
        service = NameServerService(Table(10), time.monotonic)
        counting = asyncio.create_task(count())
        await asyncio.gather(*(service.Register(requests(number), cast("Any", Stream())) for number in range(10)))
        counting.cancel()

    asyncio.run(run())
    assert all(later - earlier >= loop_share.ROUNDS for earlier, later in itertools.pairwise(registered_at))
    assert len(registered_at) == 10
