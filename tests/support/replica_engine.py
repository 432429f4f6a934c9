"""The engine of one of several replicas, without a controller: a test gives it its roles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from minimq_broker.backup.check import check_directory
from minimq_broker.calls.engine import Engine
from minimq_broker.calls.limits import Limits
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.commit.store import StoreOptions
from minimq_broker.state.facts import Topic, TopicSet
from minimq_broker.state.state import QueueKey
from minimq_common.batch import header as batch
from support.kernel_stores import TIMEOUT_S, make_batch

LIMITS = Limits(1 << 20, 1 << 22, 1 << 22)


@asynccontextmanager
async def replica_engine(path: Path, **options: Any) -> AsyncIterator[Engine]:
    """An engine that follows; at the end its directory is checked."""
    engine = Engine(path, StoreOptions(**options), LIMITS, alone=False)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield engine
    finally:
        engine.close()
    assert check_directory(path).findings == []


def with_engine(path: Path, test: Callable[[Engine], Awaitable[None]], **options: Any) -> None:
    """Run a test with such an engine."""

    async def run() -> None:
        async with replica_engine(path, **options) as engine:
            await test(engine)

    asyncio.run(run())


async def make_topic(engine: Engine, messages: int = 0, name: str = "t") -> QueueKey:
    """Make a topic at an engine that leads, and return its queue, which has so many messages."""
    await engine.writes.record(lambda state: TopicSet(Topic(name, state.position, 1, 1)))
    if messages:
        data = make_batch([b"x"] * messages)
        answer: asyncio.Queue[AppendJob] = asyncio.Queue()
        await engine.writes.append(AppendJob(name, 0, data, batch.read_header(data), done=answer.put_nowait))
        assert (await answer.get()).error is None
    return engine.store.state.queue(name, 0)
