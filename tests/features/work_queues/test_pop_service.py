"""Messages that are taken one by one, on a real engine: the bound of all runs of a broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.calls.engine import Engine
from minimq_broker.commit.store import StoreOptions
from minimq_broker.features.work_queues import work_queue_service
from minimq_broker.features.work_queues.metrics import pop_metrics
from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import Run, RunState
from minimq_broker.features.work_queues.table import popped_queues
from minimq_broker.features.work_queues.work_queue_clients import (
    MAX_FILTERS,
    PopClientStream,
    WorkQueueClients,
    WorkQueueMember,
)
from minimq_broker.features.work_queues.work_queue_service import WorkQueueService
from minimq_broker.groups.offsets import InitialOffsets, OffsetService
from minimq_common.errors import GroupConflict, SystemBusy
from minimq_common.security.caller import ANY_CALLER
from minimq_common.wire.protocol_bounds import MAX_TAGS
from minimq_proto.v1 import broker_pb2, work_queues_pb2
from support.kernel_stores import TIMEOUT_S
from support.replica_engine import LIMITS, make_topic

DONE, FREE = broker_pb2.POP_OUTCOME_DONE, broker_pb2.POP_OUTCOME_FREE


class Consumer:
    """A stream of one consumer to the service: its requests, and the context that its answers are written to."""

    def __init__(self) -> None:
        self._requests: asyncio.Queue[work_queues_pb2.PopRequest | None] = asyncio.Queue()
        self._results: asyncio.Queue[work_queues_pb2.PopResult] = asyncio.Queue()
        self.epoch = 0

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, response: bytes) -> None:
        for result in work_queues_pb2.PopResponse.FromString(response).results:
            await self._results.put(result)

    async def read(self) -> Any:
        return await self._requests.get() or grpc.aio.EOF

    async def requests(self) -> AsyncIterator[work_queues_pb2.PopRequest]:
        while (request := await self.read()) is not grpc.aio.EOF:
            yield request

    def end(self) -> None:
        self._requests.put_nowait(None)

    async def take(self, most: int) -> list[tuple[int, int, int]]:
        """Return first offset, number and tries of what is handed out."""
        take = work_queues_pb2.PopTake(id=1, topic="t", max_messages=most, max_bytes=1 << 20, invisible_ms=60_000)
        take.start.at = broker_pb2.START_AT_EARLIEST
        self._requests.put_nowait(work_queues_pb2.PopRequest(group="g", client_id="a", takes=[take]))
        popped = (await self._results.get()).popped
        self.epoch = popped.epoch or self.epoch
        return [(run.first, run.count, run.delivery_count) for run in popped.runs]

    def cancel(self, take_id: int) -> None:
        """Have a take wait no longer."""
        self._requests.put_nowait(work_queues_pb2.PopRequest(group="g", client_id="a", cancels=[take_id]))

    async def settle(self, *spans: tuple[int, int], outcome: broker_pb2.PopOutcome.ValueType = DONE) -> str:
        """Settle spans of first offset and number of the latest hand-out; return the rejection, if it is one."""
        flat = [number for span in spans for number in span]
        settle = broker_pb2.PopSettle(id=1, topic="t", epoch=self.epoch, spans=flat, outcome=outcome)
        self._requests.put_nowait(work_queues_pb2.PopRequest(group="g", client_id="a", settles=[settle]))
        result = await self._results.get()
        assert not result.HasField("failure") or result.failure.code == SystemBusy.code
        return result.failure.message


def run_with(tmp_path: Path, test: Callable[[Engine, Consumer, WorkQueueService], Awaitable[None]]) -> None:
    """Run a test of one consumer on a new store, which has to be right afterwards."""

    async def run() -> None:
        engine = Engine(tmp_path, StoreOptions(), LIMITS)
        consumer = Consumer()
        try:
            service = WorkQueueService(engine, InitialOffsets(engine), 1.0, Counter())
            async with asyncio.timeout(TIMEOUT_S):
                serving = asyncio.create_task(service.serve(consumer.requests(), cast(Any, consumer)))
                await test(engine, consumer, service)
                consumer.end()
                await serving
            service.retire()
        finally:
            engine.close()

    asyncio.run(run())
    assert check_directory(tmp_path).findings == []


def test_a_full_broker_delivers_no_new_messages_and_names_the_one_that_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(work_queue_service, "MAX_BITMAPS_IN_ALL", 5)
    monkeypatch.setattr(work_queue_service, "_COUNT_INTERVAL_S", 0.0)

    async def test(engine: Engine, consumer: Consumer, service: WorkQueueService) -> None:
        await make_topic(engine, 100)
        [queue] = engine.store.state.ends
        for at in range(5):
            assert await consumer.take(1) == [(at, 1, 1)]
        assert not await consumer.settle((4, 1), outcome=FREE)
        assert await consumer.take(10) == [(4, 1, 2)]  # a failed message is redelivered
        assert await consumer.take(10) == []
        assert service.blocked == {("g", *queue): 0}
        assert "group=g queue=0 of topic t offset=0" in caplog.text
        shown = {each.name: each for each in pop_metrics("minimq_broker", engine, service.blocked, 0)}
        [sample] = shown["minimq_broker_group_blocking_offset"].samples
        assert (*sample.labels.values(), sample.value) == ("g", "t", "0", 0)
        assert not await consumer.settle((4, 1))
        assert await consumer.take(100) == [(5, 95, 1)]
        assert service.blocked == {}

    run_with(tmp_path, test)


def test_consumers_with_messages_keep_their_group_while_they_may_reconnect_to_a_new_role(tmp_path: Path) -> None:
    commit = broker_pb2.CommitOffsetsRequest(group="g", offsets=[broker_pb2.QueueOffset(topic="t", offset=3)])

    async def test(engine: Engine, consumer: Consumer, service: WorkQueueService) -> None:
        await make_topic(engine, 5)
        assert await consumer.take(2) == [(0, 2, 1)]
        service.retire()
        engine.begin(engine.store.state.term + 1)
        later, offsets = WorkQueueService(engine, InitialOffsets(engine), 0.0, Counter()), OffsetService(engine)
        with pytest.raises(GroupConflict, match="take messages one by one, such as a"):
            await offsets.commit(commit)
        await asyncio.sleep(0.001)  # a later timer than that of the grace period, which is 0
        await offsets.commit(commit)
        later.retire()

    run_with(tmp_path, test)


def test_settled_dead_letters_leave_the_room_to_consumers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue_service, "MAX_BITMAPS_IN_ALL", 20)
    monkeypatch.setattr(work_queue_service, "_COUNT_INTERVAL_S", 0.0)

    async def test(engine: Engine, consumer: Consumer, _: WorkQueueService) -> None:
        await make_topic(engine, 1)
        letters = "%DLQ%g", 9, 0
        popped_queues(engine.store.state)[letters] = PopQueue(
            0, [Run(at, at + 1, RunState.FREE, at) for at in range(50)]
        )
        assert await consumer.take(1) == [(0, 1, 1)]
        del popped_queues(engine.store.state)[letters]

    run_with(tmp_path, test)


def test_the_hashes_of_tags_count_as_a_part_of_the_filters(tmp_path: Path) -> None:
    async def test(engine: Engine, _consumer: Consumer, _service: WorkQueueService) -> None:
        clients, popper = (
            WorkQueueClients(engine),
            WorkQueueMember("g", "a", PopClientStream(cast(Any, None), ANY_CALLER), 1),
        )

        def subscribe(number: int, tags: int) -> None:
            clients.subscribe(
                popper, work_queues_pb2.PopTake(topic=f"t{number}", filter="x" * tags, tag_hashes=range(tags))
            )

        fitting = MAX_FILTERS // (9 * MAX_TAGS)
        for number in range(fitting):
            subscribe(number, MAX_TAGS)
        with pytest.raises(SystemBusy, match="each tag counts as 8 characters"):
            subscribe(fitting, MAX_TAGS)
        subscribe(0, 0)
        subscribe(fitting, MAX_TAGS)

    run_with(tmp_path, test)


def test_of_a_consumer_that_does_not_read_its_rejections_no_more_requests_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_queue_service, "MAX_WAITING", 10)

    async def test(_engine: Engine, consumer: Consumer, _service: WorkQueueService) -> None:
        reads, write = asyncio.Event(), consumer.write

        async def write_late(response: bytes) -> None:
            await reads.wait()
            await write(response)

        consumer.write = write_late  # type: ignore[method-assign]
        for _ in range(100):
            consumer._requests.put_nowait(work_queues_pb2.PopRequest(group="no name!", client_id="a", cancels=[1]))
        for _ in range(1_000):
            await asyncio.sleep(0)
        unread = consumer._requests.qsize()
        reads.set()
        assert unread > 70
        for _ in range(100):
            assert (await consumer._results.get()).HasField("failure")

    run_with(tmp_path, test)
