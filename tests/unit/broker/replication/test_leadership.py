"""The entries that a master keeps for its slaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from minimq_broker.calls.engine import Engine
from minimq_broker.log.clock import lease_clock
from minimq_broker.replication.in_sync import InSyncLimits
from minimq_broker.replication.leadership import Leadership
from minimq_common.errors import Unavailable
from minimq_common.replicas.replica_set import ReplicaSet, change_in_sync
from minimq_proto.v1 import replication_pb2
from support.replica import until
from support.replica_engine import make_topic, with_engine

LEASE_S = 1000.0
RECORD = ReplicaSet(
    cluster="c",
    broker_name="broker-a",
    term=1,
    master_id=0,
    master_run=1,
    in_sync=frozenset({0}),
    version=1,
    sync=False,
    min_in_sync=1,
    lease_s=LEASE_S,
    addresses={0: "host:0"},
)
FOLLOW = replication_pb2.Follow(replica_id=1, term=1, run=5, address="host:1")


class SilentController:
    """Records nothing."""

    async def change_in_sync(self, *_: object) -> ReplicaSet:
        await asyncio.Event().wait()
        raise AssertionError


class DistantController:
    """Is not reached, until it is."""

    def __init__(self, record: ReplicaSet) -> None:
        self.record = record
        self.asked: list[set[int]] = []
        self.is_reached = False

    async def change_in_sync(self, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
        self.asked.append(set(in_sync))
        if not self.is_reached:
            raise Unavailable("not reached")
        self.record = change_in_sync(self.record, known, in_sync)
        return self.record


class Frames:
    """Takes what is written to a stream."""

    def __init__(self) -> None:
        self.written: asyncio.Queue[int] = asyncio.Queue()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, frame: bytes) -> None:
        self.written.put_nowait(replication_pb2.ReplicaFrame.FromString(frame).position)


async def led(engine: Engine, max_wait: InSyncLimits | None = None) -> tuple[Leadership, DistantController]:
    """Let a broker lead that waits for its replicas."""
    await engine.lead(1, waits_for_replicas=True)
    engine.begin(1)
    record = replace(RECORD, sync=True)
    controller = DistantController(record)
    until = lease_clock() + LEASE_S
    return Leadership(engine, record, 0, cast("Any", controller), max_wait or InSyncLimits(), until), controller


def test_a_slave_that_dies_while_nobody_knows_whether_it_joined_is_waited_for_until_that_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(engine: Engine) -> None:
        leadership, controller = await led(engine)
        engine.log_listeners.append(leadership.grown)
        leadership.grown()
        dies = asyncio.Event()

        async def requests() -> AsyncIterator[replication_pb2.ReplicaRequest]:
            yield replication_pb2.ReplicaRequest(synced=engine.store.end)
            await dies.wait()

        serving = asyncio.create_task(leadership.serve(FOLLOW, requests(), cast("Any", Frames())))
        await until(lambda: {0, 1} in controller.asked)
        dies.set()
        await serving
        sending = asyncio.create_task(make_topic(engine, 1))
        controller.asked.clear()
        await until(lambda: len(controller.asked) > 1)
        assert {0, 1} not in controller.asked
        assert engine.store.confirmed < engine.store.end
        assert not sending.done()
        controller.is_reached = True
        await sending
        assert leadership.record == controller.record
        assert controller.record.in_sync == {0}
        await leadership.stop()

    with_engine(tmp_path, test)
    assert caplog.text.count("in-sync set: failed, will try again") == 1


def test_a_member_that_has_to_copy_everything_leaves_the_set_at_once(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        leadership, controller = await led(engine, InSyncLimits(broken_s=LEASE_S, lag_s=LEASE_S))
        controller.is_reached = True
        engine.log_listeners.append(leadership.grown)
        leadership.grown()
        dies = asyncio.Event()

        async def requests() -> AsyncIterator[replication_pb2.ReplicaRequest]:
            yield replication_pb2.ReplicaRequest(synced=engine.store.end)
            await dies.wait()

        serving = asyncio.create_task(leadership.serve(FOLLOW, requests(), cast("Any", Frames())))
        await until(lambda: leadership.record.in_sync == {0, 1})
        dies.set()
        await serving
        follow = replication_pb2.Follow(replica_id=1, term=1, run=6, address="host:1", anew=True)
        await leadership.serve(follow, requests(), cast("Any", Frames()))
        assert leadership.progress()[1].position == 0  # it deletes what it has
        await until(lambda: leadership.record.in_sync == {0})
        await leadership.stop()

    with_engine(tmp_path, test)


def test_a_lease_does_not_go_back(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        until = lease_clock() + LEASE_S
        leadership = Leadership(engine, RECORD, 0, cast("Any", SilentController()), InSyncLimits(), until)
        leadership.renew(replace(RECORD, version=2), until - LEASE_S / 2)
        assert leadership.record.version == 2
        assert leadership.lease_left_s > LEASE_S / 2
        await leadership.stop()

    with_engine(tmp_path, test)
