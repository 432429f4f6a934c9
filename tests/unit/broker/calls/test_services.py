"""Services on a real engine, without a network between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest

from minimq_broker.calls import pull
from minimq_broker.calls.append import MAX_WAITING, AppendService
from minimq_broker.calls.engine import Engine
from minimq_broker.calls.limits import Limits
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.state.facts import Topic, TopicSet
from minimq_broker.state.state import State
from minimq_common.batch import header as batch
from minimq_common.errors import MinimqError, NotMaster, SystemBusy
from minimq_proto.v1 import broker_pb2
from support.kernel_stores import QUIET, TIMEOUT_S, make_batch


class Answers:
    """A stream: its requests, and what is written to it."""

    def __init__(self, requests: AsyncIterator[broker_pb2.AppendRequest]) -> None:
        self.requests = requests
        self.results: list[broker_pb2.AppendResult] = []

    async def read(self) -> broker_pb2.AppendRequest | object:
        return await anext(self.requests, grpc.aio.EOF)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, response: bytes) -> None:
        self.results += broker_pb2.AppendResponse.FromString(response).results


def with_engine(path: Path, test: Callable[[Engine], Awaitable[None]]) -> None:
    """Run a test on an engine with the topic "t", on a loop of its own."""

    async def run() -> None:
        engine = Engine(path, QUIET, Limits(1 << 20, 1 << 20, 100))
        try:
            await engine.writes.record(lambda state: TopicSet(Topic("t", state.position, 1, 1)))
            async with asyncio.timeout(TIMEOUT_S):
                await test(engine)
        finally:
            engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("patient", [True, False])
def test_a_batch_waits_for_room_only_as_long_as_it_may(tmp_path: Path, patient: bool) -> None:
    data = make_batch([bytes(200)])
    held, go_on = threading.Event(), threading.Event()
    written: asyncio.Queue[int] = asyncio.Queue()

    def job() -> AppendJob:
        return AppendJob(
            "t", 0, data, batch.read_header(data), done=lambda done: written.put_nowait(done.place.base_offset)
        )

    def hold(_: State) -> None:
        held.set()
        go_on.wait(TIMEOUT_S)

    async def test(engine: Engine) -> None:
        engine.limits = replace(engine.limits, busy_after_s=TIMEOUT_S if patient else 0.01)
        holding = asyncio.create_task(engine.writes.record(hold))
        await asyncio.to_thread(held.wait)
        await engine.writes.append(job())
        later = [asyncio.create_task(engine.writes.append(job())) for _ in range(3)]
        if not patient:
            for rejection in await asyncio.gather(*later, return_exceptions=True):
                assert isinstance(rejection, SystemBusy)
                assert rejection.retry_after_s == 0.5
                assert f"{len(data)} bytes of batches wait for the disk" in rejection.message
            later = []
        go_on.set()
        await asyncio.gather(holding, *later)
        first = await written.get()  # and there is room again
        await engine.writes.append(job())
        assert [first, *[await written.get() for _ in range(4 if patient else 1)]] == list(range(5 if patient else 2))

    with_engine(tmp_path, test)


def test_a_batch_that_waits_for_room_is_rejected_when_the_role_changes(tmp_path: Path) -> None:
    data = make_batch([bytes(200)])
    held, go_on = threading.Event(), threading.Event()

    def job() -> AppendJob:
        return AppendJob("t", 0, data, batch.read_header(data))

    def hold(_: State) -> None:
        held.set()
        go_on.wait(TIMEOUT_S)

    def rejection(*, to_sender: bool) -> MinimqError | None:
        return NotMaster("another one leads")

    async def test(engine: Engine) -> None:
        engine.limits = replace(engine.limits, busy_after_s=TIMEOUT_S)
        holding = asyncio.create_task(engine.writes.record(hold))
        await asyncio.to_thread(held.wait)
        await engine.writes.append(job())
        waiting = asyncio.create_task(engine.writes.append(job()))
        await asyncio.sleep(0)
        engine.writes.rejection = rejection
        go_on.set()
        for rejected in (holding, waiting):
            with pytest.raises(NotMaster):
                await rejected
        await engine.writes.settle(TIMEOUT_S)
        assert engine.writes.pending_bytes == 0

    with_engine(tmp_path, test)


def test_nothing_is_received_while_many_answers_wait(tmp_path: Path) -> None:
    """A client that sends what is rejected, and does not read why."""
    asked = 0
    reads = asyncio.Event()

    async def requests() -> AsyncIterator[broker_pb2.AppendRequest]:
        nonlocal asked
        for asked in range(1, 5001):
            yield broker_pb2.AppendRequest(appends=[broker_pb2.Append(request_id=asked, topic="t", batch=b"x")])
            await asyncio.sleep(0)

    class Unread(Answers):
        async def write(self, response: bytes) -> None:
            await reads.wait()
            await super().write(response)

    async def test(engine: Engine) -> None:
        answers = Unread(requests())
        serving = asyncio.create_task(AppendService(engine, {}).serve(answers.requests, cast("Any", answers)))
        while asked < MAX_WAITING:  # noqa: ASYNC110 - a stream's doing, which tells nobody
            await asyncio.sleep(0.001)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert MAX_WAITING <= asked <= MAX_WAITING + 10
        reads.set()
        await serving
        assert sorted(result.request_id for result in answers.results) == list(range(1, 5001))

    with_engine(tmp_path, test)


@pytest.mark.parametrize(("tags", "received"), [(0, 12), (1001, 2)], ids=["too many pulls", "too many tags"])
def test_no_more_pulls_are_received_until_a_rejection_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tags: int, received: int
) -> None:
    monkeypatch.setattr(pull, "MAX_PULLS", 10)
    asked = 0
    reads = asyncio.Event()
    ended: list[int] = []

    class Unread:
        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        async def write(self, frame: bytes) -> None:
            await reads.wait()
            ended.append(broker_pb2.PullFrame.FromString(frame).pull_id)

    async def requests() -> AsyncIterator[broker_pb2.PullRequest]:
        nonlocal asked
        for asked in range(1, 101):
            yield broker_pb2.PullRequest(pull_id=asked, topic="t", max_messages=1, max_bytes=1, tag_hashes=range(tags))
            await asyncio.sleep(0)

    async def test(engine: Engine) -> None:
        serving = asyncio.create_task(pull.PullService(engine).serve(requests(), cast("Any", Unread())))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert asked == received
        reads.set()
        await serving
        assert sorted(ended) == list(range(1, 101))

    with_engine(tmp_path, test)
