"""`Retention` on a real engine: what holds it back, and what does not."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.calls.engine import Engine
from minimq_broker.calls.limits import Limits
from minimq_broker.calls.pull import PullService
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.commit.message_store import StoredBatch, StoreOptions
from minimq_broker.features.retention.retention import NOTHING_NEEDED, RetentionRules
from minimq_broker.features.retention.retention_service import Retention
from minimq_broker.features.work_queues.pop_answers import DeliveredRuns, PopReader
from minimq_broker.features.work_queues.pop_runs import PopKey, PopOutcome, Run, RunState, Settle
from minimq_broker.log.checkpoint import Checkpoint
from minimq_broker.log.clock import PopClock
from minimq_broker.log.rows import BorrowedViews, ReadLimits
from minimq_broker.log.segment import Segment
from minimq_broker.state.facts import Topic, TopicSet
from minimq_broker.state.state import QueueKey
from minimq_common.batch import header as batch
from minimq_common.errors import CorruptEntry, OffsetOutOfRange
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import broker_pb2
from support.observers import NO_ENGINE_OBSERVER
from support.stores import TIMEOUT_S, Clock, make_batch

SEGMENT = 1 << 16
BODY = bytes(20_000)


class Kept:
    """An engine with topic "t", whose retention looks when told to."""

    def __init__(self, engine: Engine, lowest_needed: Callable[[], int]) -> None:
        self.engine = engine
        self.clock = Clock()
        self.retention = Retention(engine.handle, engine.counters, 0.01, lowest_needed, self.clock)
        self.looks = 0
        self.has_looked = asyncio.Condition()
        self._real_look = self.retention._look
        self.retention._run = self._look

    async def send(self, count: int, body: bytes = BODY) -> None:
        data = make_batch([body])
        for _ in range(count):
            sent: asyncio.Queue[AppendJob] = asyncio.Queue()
            await self.engine.writes.append(AppendJob("t", 0, data, batch.read_header(data), done=sent.put_nowait))
            assert (await sent.get()).error is None
        self.clock.now_ms = self.engine.state.end(self.key).stored_ms

    @property
    def key(self) -> QueueKey:
        return self.engine.state.queue("t", 0)

    @property
    def starts(self) -> list[int]:
        return [segment.start for segment in self.engine.store.log.segments]

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.looked()

    async def until_saved(self) -> None:
        """Wait until the checkpoint has all there is."""
        while self.engine.store.saved_position < self.engine.state.position:  # noqa: ASYNC110 - another thread's doing
            await asyncio.sleep(0.005)

    async def looked(self) -> None:
        """Wait until it has looked once more, and done what followed."""
        before = self.looks
        async with self.has_looked:
            await self.has_looked.wait_for(lambda: self.looks >= before + 2)

    async def _look(self) -> None:
        await self._real_look()
        async with self.has_looked:
            self.looks += 1
            self.has_looked.notify_all()


def with_retention(
    path: Path,
    rules: RetentionRules,
    test: Callable[[Kept], Awaitable[None]],
    checkpoint_interval_s: float = 0.02,
    lowest_needed: Callable[[], int] = lambda: NOTHING_NEEDED,
) -> None:
    async def run() -> None:
        options = StoreOptions(SEGMENT, checkpoint_interval_s=checkpoint_interval_s, retention=rules)
        engine = Engine(
            path,
            options,
            Limits(1 << 20, 1 << 20, 1 << 20),
            replace(NO_ENGINE_OBSERVER, disk_filled=lambda: kept.retention.look_now()),  # noqa: PLW0108 - made later
        )
        kept = Kept(engine, lowest_needed)
        try:
            await engine.writes.record(lambda state: TopicSet(Topic("t", state.position, 1, 1)))
            async with asyncio.timeout(TIMEOUT_S):
                await test(kept)
        finally:
            await kept.retention.stop()
            engine.close()

    asyncio.run(run())
    assert check_directory(path).findings == []


def test_what_a_slave_needs_stays(tmp_path: Path) -> None:
    needed = [0]

    async def test(kept: Kept) -> None:
        await kept.send(12)
        before = kept.starts
        kept.retention.start()
        await kept.looked()
        assert kept.starts == before
        needed[0] = before[2] + 1
        await kept.until(lambda: kept.starts == before[2:])
        await kept.looked()
        assert kept.starts == before[2:]

    with_retention(tmp_path, RetentionRules(max_bytes=1), test, lowest_needed=lambda: needed[0])


@pytest.mark.parametrize("kind", [CorruptEntry, struct.error])
def test_a_damaged_segment_goes_by_the_time_of_its_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    async def test(kept: Kept) -> None:
        await kept.send(12)
        first = kept.engine.store.log.segments[0]
        count = len(kept.starts)
        now_s = kept.clock.now_ms / 1000
        os.utime(first.path, (now_s, now_s))

        def damaged() -> int | None:
            raise kind("the entry at position 0 does not match its CRC-32C")

        first.newest_ms = damaged  # type: ignore[method-assign]
        kept.retention.start()
        await kept.looked()
        assert len(kept.starts) == count
        kept.clock.now_ms += 1001
        await kept.until(lambda: kept.engine.counters.segments_deleted == count)

    with_retention(tmp_path, RetentionRules(max_age_ms=1000), test)
    assert [record.getMessage() for record in caplog.records if "uses file time" in record.getMessage()] == [
        "retention: age unreadable, uses file time segment=0 error=the entry at position 0 does not match its CRC-32C"
    ]


# ---- pulls while segments are deleted -------------------------------------------------------------


class Frames:
    """The sending side of a stream of pulls: keeps what is written."""

    def __init__(self) -> None:
        self.frames: list[broker_pb2.PullFrame] = []

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, frame: bytes) -> None:
        self.frames.append(broker_pb2.PullFrame.FromString(frame))


@pytest.mark.parametrize("tags", [(), (1,)], ids=["all", "some"])
def test_what_is_deleted_under_a_pull_is_not_passed_over(
    tmp_path: Path, tags: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest segment goes after the offset was found valid, and before it is read."""

    async def test(kept: Kept) -> None:
        await kept.send(12)
        log, search = kept.engine.store.log, kept.engine.store.search
        await kept.until_saved()

        def delete_and_search(queue: QueueKey, offset: int, limits: ReadLimits) -> tuple[list[StoredBatch], int]:
            monkeypatch.undo()
            assert log.remove_first(kept.engine.store.saved_position)
            return search(queue, offset, limits)

        monkeypatch.setattr(kept.engine.store, "search", delete_and_search)
        answer = Frames()
        request = broker_pb2.PullRequest(
            pull_id=1, topic="t", offset=0, max_messages=100, max_bytes=1 << 20, tag_hashes=tags
        )
        await PullService(kept.engine).serve(one(request), cast(Any, answer))
        [frame] = answer.frames
        first, end = kept.engine.store.bounds(kept.key)
        assert 0 < first < end
        assert isinstance(from_failure(frame.failure), OffsetOutOfRange)
        assert (frame.min_offset, frame.max_offset, list(frame.batches)) == (first, end, [])

    with_retention(tmp_path, RetentionRules(), test)


async def one(request: broker_pb2.PullRequest) -> AsyncIterator[broker_pb2.PullRequest]:
    yield request


def read(reader: PopReader, delivered: DeliveredRuns) -> broker_pb2.PopResult:
    with BorrowedViews() as borrowed:
        return broker_pb2.PopResult.FromString(b"".join(reader.encode(delivered, borrowed)))


def test_messages_that_are_deleted_before_their_taker_reads_them_are_no_damage(tmp_path: Path) -> None:
    async def test(kept: Kept) -> None:
        await kept.send(12)
        given_back: list[Settle] = []
        reader = PopReader(kept.engine, PopClock(), lambda _, settle: given_back.append(settle))
        runs = [Run(0, 1, RunState.OUT, 2, 0, 7, "a"), Run(1, 12, RunState.OUT, 1, 0, 7, "a")]
        hand_out = DeliveredRuns(1, 1 << 20, frozenset(), PopKey("g", *kept.key), runs, 7, False)
        kept.retention.start()
        kept.clock.now_ms = (kept.engine.store.log.segments[1].newest_ms() or 0) + 1000
        await kept.until(lambda: 1 < kept.engine.store.bounds(kept.key)[0] < 12)
        await kept.looked()
        first, _ = kept.engine.store.bounds(kept.key)
        result = read(reader, hand_out)
        assert [(run.first, run.count) for run in result.popped.runs] == [(first, 12 - first)]
        assert given_back == [Settle(7, [(0, 1), (1, first)], PopOutcome.RETURN)]

        kept.clock.now_ms = kept.engine.state.end(kept.key).stored_ms + 1000
        await kept.until(lambda: kept.engine.store.bounds(kept.key) == (12, 12))
        result = read(reader, hand_out)
        assert not result.popped.runs
        assert not result.HasField("failure")
        assert given_back[1:] == [Settle(7, [(0, 1), (1, 12)], PopOutcome.RETURN)]

    with_retention(tmp_path, RetentionRules(max_age_ms=1000), test)


def test_an_idle_store_is_neither_saved_nor_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def call(self: object, *args: Any, **named: Any) -> Any:
            calls.append(name)
            return original(self, *args, **named)

        monkeypatch.setattr(owner, name, call)

    async def test(kept: Kept) -> None:
        await kept.send(20)
        assert len(kept.starts) > 2
        kept.retention.start()
        await kept.until_saved()
        await kept.looked()
        await kept.looked()
        counted(Checkpoint, "save")
        counted(Segment, "_reading")  # a read marks a page of the lock file as changed
        checked_at = kept.engine.store.figures.saved_at
        for _ in range(5):
            await kept.looked()
        await kept.until(lambda: kept.engine.store.figures.saved_at > checked_at)
        assert calls == []
        await kept.send(1)
        await kept.until_saved()
        await kept.looked()
        assert set(calls) == {"save", "_reading"}

    with_retention(tmp_path, RetentionRules(max_age_ms=3_600_000), test)
