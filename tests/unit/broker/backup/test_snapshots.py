"""A copy that is taken of a broker, as retention sees it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from minimq_broker.backup import copying
from minimq_broker.backup.copying import Snapshots
from minimq_broker.calls.engine import Engine
from minimq_broker.state.queue_ends import NOTHING_NEEDED
from minimq_common.errors import SystemBusy
from minimq_proto.v1 import replication_pb2
from support.kernel_stores import TIMEOUT_S
from support.replica_engine import make_topic, with_engine
from support.waiting import wait_until


class Reader:
    """Takes frames of a stream, as far as it is let."""

    def __init__(self) -> None:
        self.frames: list[replication_pb2.ReplicaFrame] = []
        self.coming = replication_pb2.ReplicaFrame()
        self.turn = asyncio.Semaphore(0)
        self.waits = asyncio.Event()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, frame: bytes) -> None:
        self.coming = replication_pb2.ReplicaFrame.FromString(frame)
        self.waits.set()
        await self.turn.acquire()
        self.frames.append(self.coming)


@pytest.mark.parametrize("max_wait_s", [20.0, 0.0])
def test_what_a_copy_needs_stays_as_long_as_it_moves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_wait_s: float
) -> None:
    monkeypatch.setattr(copying, "_STUCK_S", max_wait_s)
    monkeypatch.setattr(copying, "FRAME_BYTES", 1)

    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        await make_topic(engine, 10)
        snapshots, reader = Snapshots(engine.store, engine.unsent), Reader()
        assert snapshots.lowest_needed() == NOTHING_NEEDED
        sending = asyncio.create_task(snapshots.send(cast("Any", reader)))
        needed = []
        while not sending.done():
            reader.waits.clear()
            reader.turn.release()
            waiting = asyncio.create_task(reader.waits.wait())
            await asyncio.wait((sending, waiting), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            needed.append(snapshots.lowest_needed())
        await sending
        entries = [frame.position for frame in reader.frames if frame.entries]
        assert len(entries) == 3
        if max_wait_s:
            assert needed == sorted(needed)
            assert {*entries} <= {*needed}
        else:
            assert {*needed} == {NOTHING_NEEDED}
        assert snapshots.lowest_needed() == NOTHING_NEEDED

    with_engine(tmp_path, test)


def test_a_copy_ends_with_what_is_confirmed(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=True)
        store = engine.store
        confirmed = store.end
        store.confirmation.confirm(confirmed)
        waiting = asyncio.create_task(make_topic(engine))
        await asyncio.to_thread(wait_until, lambda: store.end > confirmed, TIMEOUT_S)
        reader = Reader()
        for _ in range(100):
            reader.turn.release()
        await Snapshots(engine.store, engine.unsent).send(cast("Any", reader))
        assert {frame.end for frame in reader.frames} == {confirmed}
        assert sum(len(entry) for frame in reader.frames for entry in frame.entries) == confirmed > 0
        assert not waiting.done()
        store.confirmation.confirm(store.end)
        await waiting

    with_engine(tmp_path, test)


def test_a_copy_begins_after_the_change_of_old_segments_that_has_not_seen_it(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        await make_topic(engine)
        snapshots, reader = Snapshots(engine.store, engine.unsent), Reader()
        began, changes = threading.Event(), threading.Event()

        def change() -> None:
            with engine.store.log.kept:
                changes.set()
                assert began.wait(TIMEOUT_S)

        changing = asyncio.create_task(asyncio.to_thread(change))
        await asyncio.to_thread(changes.wait, TIMEOUT_S)
        sending = asyncio.create_task(snapshots.send(cast("Any", reader)))
        await asyncio.to_thread(wait_until, lambda: snapshots.lowest_needed() == 0, TIMEOUT_S)
        looked = await asyncio.gather(*(asyncio.to_thread(reader.waits.is_set) for _ in range(100)))
        assert not any(looked)
        began.set()
        for _ in range(100):
            reader.turn.release()
        await asyncio.gather(changing, sending)

    with_engine(tmp_path, test)


@pytest.mark.parametrize("grows_again", [False, True])
def test_a_copy_ends_when_the_log_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, grows_again: bool) -> None:
    monkeypatch.setattr(copying, "FRAME_BYTES", 1)

    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        await make_topic(engine, 10)
        reader = Reader()
        sending = asyncio.create_task(Snapshots(engine.store, engine.unsent).send(cast("Any", reader)))
        await reader.waits.wait()
        while not reader.coming.entries:
            reader.waits.clear()
            reader.turn.release()
            await reader.waits.wait()
        cut_at = reader.coming.position + len(reader.coming.entries[0])
        await engine.follow()
        await engine.truncate(cut_at)
        if grows_again:
            await engine.lead(2, waits_for_replicas=False)
            await make_topic(engine, 100)
        for _ in range(100):
            reader.turn.release()
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(SystemBusy, match="was cut"):
                await sending

    with_engine(tmp_path, test)
