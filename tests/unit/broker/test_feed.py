"""The master's end of the stream to a slave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

from minimq_broker.core.in_sync import InSync, Patience
from minimq_broker.replication.feed import Feed, FollowerHello
from minimq_broker.services.engine import Engine
from minimq_proto.v1 import replication_pb2
from support.replica_engine import with_engine

SLAVE = FollowerHello(1, 7, "host:1")


class Frames:
    """Takes what is written to a stream."""

    def __init__(self) -> None:
        self.written: asyncio.Queue[replication_pb2.ReplicaFrame] = asyncio.Queue()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, frame: bytes) -> None:
        self.written.put_nowait(replication_pb2.ReplicaFrame.FromString(frame))


def test_nothing_of_a_feed_goes_on_when_it_has_ended(tmp_path: Path) -> None:
    """Whoever waits for its end may take the store away."""

    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        in_sync = InSync(0, {0}, Patience(), 0.0, sync=False)
        feed = Feed(engine.store, in_sync, SLAVE, engine.store.end, lambda: None, engine.unsent)
        frames = Frames()

        async def requests() -> AsyncIterator[replication_pb2.ReplicaRequest]:
            yield replication_pb2.ReplicaRequest(synced=0)
            await asyncio.Event().wait()

        running = asyncio.create_task(feed.run(requests(), cast("Any", frames)))
        assert (await frames.written.get()).HasField("go_on")
        feed.end()
        await feed.ended()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("feed-1")]
        await running

    with_engine(tmp_path, test)
