"""What a master keeps for its slaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

from minimq_broker.core.in_sync import Patience
from minimq_broker.core.retention import NOTHING_NEEDED
from minimq_broker.replication.leadership import Leadership, lease_clock
from minimq_broker.services.engine import Engine
from minimq_common.replica_set import ReplicaSet
from minimq_proto.v1 import replication_pb2
from support.replica_engine import make_topic, with_engine

LEASE_S = 1000.0


class SilentController:
    """Records nothing."""

    async def change_in_sync(self, *_: object) -> ReplicaSet:
        await asyncio.Event().wait()
        raise AssertionError


class Frames:
    """Takes what is written to a stream."""

    def __init__(self) -> None:
        self.written: asyncio.Queue[int] = asyncio.Queue()

    async def write(self, frame: replication_pb2.ReplicaFrame) -> None:
        self.written.put_nowait(frame.position)


def test_what_a_slave_copies_is_kept_though_it_is_not_in_sync(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        engine.begin(1)
        await make_topic(engine, 100)
        record = ReplicaSet(
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
        leadership = Leadership(engine, record, 0, cast("Any", SilentController()), Patience(), lease_clock() + LEASE_S)
        assert leadership.lowest_needed() == NOTHING_NEEDED
        frames, synced = Frames(), asyncio.Event()

        async def requests() -> AsyncIterator[replication_pb2.ReplicaRequest]:
            await synced.wait()
            yield replication_pb2.ReplicaRequest(synced=engine.store.end)
            await asyncio.Event().wait()

        follow = replication_pb2.Follow(replica_id=1, term=1, anew=True, run=5, address="host:1")
        serving = asyncio.create_task(leadership.serve(follow, requests(), cast("Any", frames)))
        await frames.written.get()
        assert leadership.lowest_needed() <= engine.store.end
        synced.set()
        while leadership.lowest_needed() != NOTHING_NEEDED:
            await frames.written.get()
        await leadership.stop()
        await serving

    with_engine(tmp_path, test)
