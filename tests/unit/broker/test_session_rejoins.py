"""A member that comes back while a list of its group is being made hears none that is older than its return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

from minimq_broker.services.engine import Engine
from minimq_broker.services.session import SessionOptions, SessionService
from minimq_common.serving.periodic import SLICE
from minimq_proto.v1 import broker_pb2
from support.replica_engine import make_topic, with_engine
from support.stores import PATIENCE_S

#: A list of members that hold so much is made in many turns of the event loop, more than a rejoin takes.
HELD = 16 * SLICE


class Session:
    """One session of a client, without a network between."""

    def __init__(self, service: SessionService, client_id: str) -> None:
        self._client_id = client_id
        self._requests: asyncio.Queue[broker_pb2.SessionRequest | None] = asyncio.Queue()
        self.lists: asyncio.Queue[broker_pb2.GroupMembers] = asyncio.Queue()
        self._serving = asyncio.create_task(service.serve(self._incoming(), cast("Any", self)))

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, data: bytes) -> None:
        event = broker_pb2.SessionEvent.FromString(data)
        if event.HasField("members"):
            self.lists.put_nowait(event.members)

    def join(self, *topics: str, held: int = 0) -> None:
        queues = [broker_pb2.QueueName(topic="t", broker_name="other", queue_id=number) for number in range(held)]
        join = broker_pb2.JoinGroup(group="g", topics=topics, held=queues, allocation="averagely")
        self._requests.put_nowait(broker_pb2.SessionRequest(client_id=self._client_id, join=join))

    async def end(self) -> None:
        self._requests.put_nowait(None)
        await self._serving

    async def _incoming(self) -> AsyncIterator[broker_pb2.SessionRequest]:
        while (request := await self._requests.get()) is not None:
            yield request


async def until(condition: Callable[[], bool]) -> None:
    """Let others have turns until something is the case."""
    while True:
        if condition():
            return
        await asyncio.sleep(0)


def test_who_rejoins_while_a_list_is_made_hears_no_older_one(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        engine.begin(1)
        await make_topic(engine, 0)
        service = SessionService(engine, SessionOptions(), "broker-a")
        async with asyncio.timeout(PATIENCE_S):
            first, second = Session(service, "a"), Session(service, "b")
            first.join("t", held=HELD)
            await first.lists.get()
            second.join("t", held=HELD)
            await until(service._lists._making.locked)  # the list of both is being made
            between = engine.groups.members("g").version
            await first.end()
            first = Session(service, "a")
            first.join("t", "u")
            await until(lambda: engine.groups.members("g").version > between)
            assert service._lists._making.locked()
            joined = engine.groups.members("g").version
            assert (await second.lists.get()).version == between
            assert (await first.lists.get()).version == joined
            for session in (first, second):
                await session.end()
        service.retire()

    with_engine(tmp_path, test)
