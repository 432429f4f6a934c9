"""Readers and groups whose offsets are of a log that was longer: they go on where this one is another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minimq_broker.calls.engine import Engine
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.groups.offsets import OffsetService
from minimq_broker.state.state import QueueKey
from minimq_common.batch import header as batch
from minimq_common.errors import MinimqError, NotMaster, OffsetOutOfRange
from minimq_proto.v1 import broker_pb2
from support.kernel_stores import make_batch
from support.replica_engine import make_topic, with_engine


async def lead(engine: Engine, term: int) -> None:
    await engine.lead(term, waits_for_replicas=False)
    engine.begin(term)


async def append(engine: Engine, messages: int) -> MinimqError | None:
    data = make_batch([b"x"] * messages)
    answer: asyncio.Queue[AppendJob] = asyncio.Queue()
    await engine.writes.append(AppendJob("t", 0, data, batch.read_header(data), done=answer.put_nowait))
    return (await answer.get()).error


async def cut_and_go_on(engine: Engine) -> QueueKey:
    """Write up to 150 in term 1, be cut to 100, and write up to 180 in term 2, then up to 200 in term 4."""
    await lead(engine, 1)
    queue = await make_topic(engine, 100)
    place = engine.store.end
    await append(engine, 50)
    await engine.follow()
    await asyncio.to_thread(engine.store.writer.truncate, place)
    await lead(engine, 2)
    await append(engine, 80)
    await engine.follow()
    await lead(engine, 4)
    await append(engine, 20)
    return queue


@pytest.mark.parametrize(
    ("term", "offset", "rejected"),
    [(1, 100, False), (1, 101, True), (2, 180, False), (2, 181, True), (4, 200, False), (0, 150, False)],
)
def test_an_offset_that_was_taken_back_is_not_committed(
    tmp_path: Path, term: int, offset: int, *, rejected: bool
) -> None:
    async def test(engine: Engine) -> None:
        queue = await cut_and_go_on(engine)
        item = broker_pb2.QueueOffset(topic="t", queue_id=0, offset=offset, term=term)
        request = broker_pb2.CommitOffsetsRequest(group="g", offsets=[item])
        if rejected:
            with pytest.raises(OffsetOutOfRange):
                await OffsetService(engine).commit(request)
        else:
            await OffsetService(engine).commit(request)
        assert engine.store.state.offset("g", queue) == (None if rejected else offset)

    with_engine(tmp_path, test)


def test_what_was_written_by_a_master_whose_time_is_over_is_not_acknowledged(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        await lead(engine, 1)
        queue = await make_topic(engine, 1)

        def rejection(*, to_sender: bool) -> MinimqError | None:
            return NotMaster("the lease is over") if to_sender and engine.store.state.end(queue).offset > 1 else None

        engine.writes.rejection = rejection  # while it is accepted nothing speaks against it
        assert isinstance(await append(engine, 1), NotMaster)
        assert engine.store.state.end(queue).offset == 2  # it is there all the same

    with_engine(tmp_path, test)
