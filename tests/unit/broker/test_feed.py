"""The master's end of the stream to a slave: offsets that the slave has kept are recorded in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from minimq_broker.core.in_sync import InSync, Patience
from minimq_broker.replication import feed as feed_module
from minimq_broker.replication.feed import Feed, FeedCalls, FollowerHello
from minimq_broker.services.engine import Engine
from minimq_broker.store.standby_offsets import Kept
from minimq_common.errors import NotEnoughReplicas
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


def handed_over(number: int, group: str) -> replication_pb2.ReplicaRequest:
    request = replication_pb2.ReplicaRequest(offsets_number=number)
    request.offsets.add(group=group, topic_id=1, queue_id=0, offset=5, forced=group == "forced")
    return request


def test_what_comes_later_does_not_pass_by_what_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave forgets all up to the number that it is told."""
    monkeypatch.setattr(feed_module, "_RETRY_S", 0.01)
    recorded: list[Kept] = []
    refusals = 3

    async def record(rows: Sequence[Kept]) -> None:
        nonlocal refusals
        if rows[0].group == "first" and refusals:
            refusals -= 1
            raise NotEnoughReplicas("it is alone")
        recorded.extend(rows)

    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        in_sync = InSync(0, {0}, Patience(), 0.0, sync=False)
        feed = Feed(engine.store, in_sync, SLAVE, engine.store.end, FeedCalls(lambda: None, record), engine.unsent)
        frames = Frames()

        async def requests() -> AsyncIterator[replication_pb2.ReplicaRequest]:
            yield handed_over(10, "first")
            yield handed_over(20, "forced")
            await asyncio.Event().wait()

        running = asyncio.create_task(feed.run(requests(), cast("Any", frames)))
        told = [0]
        while told[-1] < 20:
            frame = await frames.written.get()
            # What the slave is told is recorded, whatever else is.
            assert frame.offsets_number <= max((row.number for row in recorded), default=0)
            assert "first" in {row.group for row in recorded} or not frame.offsets_number
            told.append(frame.offsets_number)
        feed.end()
        await running
        assert [(row.group, row.number, row.forced) for row in recorded] == [("first", 10, False), ("forced", 20, True)]
        assert refusals == 0

    with_engine(tmp_path, test)


def test_nothing_of_a_feed_goes_on_when_it_has_ended(tmp_path: Path) -> None:
    """Whoever waits for its end may take the store away."""
    begun = asyncio.Event()
    left: list[bool] = []

    async def record(rows: Sequence[Kept]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):  # it takes its time
                await asyncio.sleep(0)
            left.append(True)

    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        feed = Feed(
            engine.store,
            InSync(0, {0}, Patience(), 0.0, sync=False),
            SLAVE,
            engine.store.end,
            FeedCalls(lambda: None, record),
            engine.unsent,
        )

        async def requests() -> AsyncIterator[replication_pb2.ReplicaRequest]:
            yield handed_over(10, "first")
            await asyncio.Event().wait()

        running = asyncio.create_task(feed.run(requests(), cast("Any", Frames())))
        await begun.wait()
        feed.end()
        await feed.ended()
        assert left == [True]
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("feed-1")]
        await running

    with_engine(tmp_path, test)
