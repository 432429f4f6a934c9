"""Leases on a real engine: what has to be on disk before a member hears of its queue."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from minimq_broker.calls.engine import Engine
from minimq_broker.groups import lease_service as leases
from minimq_broker.groups.groups import GroupConfig
from minimq_broker.groups.lease_service import LeaseKeeper
from minimq_broker.groups.offsets import InitialOffsets
from minimq_broker.log.clock import now_ms
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted
from minimq_broker.state.state import State
from minimq_common.errors import StoreFull, SystemBusy
from minimq_proto.v1 import broker_pb2
from support.kernel_stores import TIMEOUT_S
from support.replica_engine import make_topic, with_engine

EARLIEST = broker_pb2.StartPosition(at=broker_pb2.START_AT_EARLIEST)


def test_members_request_a_limited_number_of_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(engine: Engine) -> None:
        keeper = LeaseKeeper(engine, InitialOffsets(engine), "broker-a", lambda *_: None)
        keeper._check_room("g", "member", leases.MAX_OF_MEMBER - 1)
        with pytest.raises(SystemBusy, match=r"member requests more than 20000 queues .*: start more members"):
            keeper._check_room("g", "member", leases.MAX_OF_MEMBER)
        monkeypatch.setattr(leases, "MAX_WANTED", 0)
        with pytest.raises(SystemBusy, match="request more than 0 queues of this broker: stop consumers"):
            keeper._check_room("g", "member", 0)

    with_engine(tmp_path, test)


def test_a_queue_is_granted_behind_the_last_commit_of_its_former_owner(tmp_path: Path) -> None:
    """The commit waits for the disk while the queue changes hands."""
    held, go_on = threading.Event(), threading.Event()

    def hold(_: State) -> None:
        held.set()
        go_on.wait(TIMEOUT_S)

    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        queue = await make_topic(engine, messages=5)
        told: asyncio.Queue[tuple[str, broker_pb2.QueueGranted]] = asyncio.Queue()

        def tell(_: str, client_id: str, event: broker_pb2.SessionEvent) -> None:
            if event.HasField("granted"):
                told.put_nowait((client_id, event.granted))

        keeper = LeaseKeeper(engine, InitialOffsets(engine), "broker-a", tell)
        items = [broker_pb2.QueueEpoch(topic="t", queue_id=0)]
        for name in ("former", "next"):
            engine.tables.groups.join("g", name, GroupConfig((("t", ""),), "averagely"))
        await keeper.acquire("former", broker_pb2.AcquireQueues(group="g", queues=items), EARLIEST)
        assert (await told.get())[0] == "former"
        await keeper.acquire("next", broker_pb2.AcquireQueues(group="g", queues=items), EARLIEST)

        holding = asyncio.create_task(engine.writes.record(hold))
        await asyncio.to_thread(held.wait)
        fact = OffsetsCommitted("g", (CommittedOffset(*queue, 3),))
        committing = asyncio.create_task(engine.writes.record(lambda _: fact))
        await asyncio.sleep(0)  # it is handed in
        await keeper.release("g", "former", items)
        for _ in range(10):  # whatever can be told without the disk is told by then
            await asyncio.sleep(0)
        assert told.empty()
        go_on.set()
        client_id, granted = await told.get()
        assert (client_id, granted.offset) == ("next", 3)
        await asyncio.gather(holding, committing)
        engine.streams.end()

    with_engine(tmp_path, test)


def test_a_member_whose_broker_was_ahead_of_this_one_passes_nothing_over(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        await make_topic(engine, messages=5)
        told: asyncio.Queue[broker_pb2.SessionEvent] = asyncio.Queue()
        keeper = LeaseKeeper(engine, InitialOffsets(engine), "broker-a", lambda *event: told.put_nowait(event[2]))
        engine.tables.groups.join("g", "member", GroupConfig((("t", ""),), "averagely"))
        acquire = broker_pb2.AcquireQueues(
            group="g",
            queues=[broker_pb2.QueueEpoch(topic="t", queue_id=0)],
            begun=[broker_pb2.TopicBegun(topic="t", ago_ms=600_000)],
            now_ms=now_ms() + 3_600_000,
        )
        await keeper.acquire("member", acquire, broker_pb2.StartPosition(at=broker_pb2.START_AT_LATEST))
        assert (await told.get()).granted.offset == 0
        engine.streams.end()

    with_engine(tmp_path, test)


def test_a_member_is_told_why_a_queue_that_appeared_is_not_granted(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        told: asyncio.Queue[broker_pb2.SessionEvent] = asyncio.Queue()
        keeper = LeaseKeeper(engine, InitialOffsets(engine), "broker-a", lambda *event: told.put_nowait(event[2]))
        engine.tables.groups.join("g", "member", GroupConfig((("t", ""),), "averagely"))
        items = [broker_pb2.QueueEpoch(topic="t", queue_id=0)]
        await keeper.acquire("member", broker_pb2.AcquireQueues(group="g", queues=items), EARLIEST)
        await make_topic(engine)
        engine.writes.rejection = lambda **_: StoreFull("the disk is full")
        keeper.retry_wishes()
        rejected = (await told.get()).rejected
        assert (rejected.group, rejected.failure.code) == ("g", StoreFull.code)
        engine.writes.rejection = None
        keeper.retry_wishes()
        assert (await told.get()).granted.topic == "t"
        engine.streams.end()

    with_engine(tmp_path, test)
