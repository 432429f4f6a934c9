from __future__ import annotations

import asyncio
from collections.abc import Sequence

from minimq_nameserver.registrations import read_registration
from minimq_nameserver.route_table import RouteTable
from minimq_proto.v1 import nameserver_pb2


def registration(
    topics: Sequence[str], name: str = "broker-a", read_queues: int = 8, **fields: int
) -> nameserver_pb2.RegisterRequest:
    return nameserver_pb2.RegisterRequest(
        cluster="default",
        broker_name=name,
        address=f"{name}:1",
        permission=6,
        groups=[nameserver_pb2.TopicGroup(topics=topics, read_queues=read_queues, write_queues=4, permission=6)],
        **fields,  # type: ignore[arg-type]
    )


def many(count: int) -> list[str]:
    return [f"topic-{number}" for number in range(count)]


def test_other_work_goes_on_while_large_tables_are_read() -> None:
    """Five brokers with 10,000 topics register at once; meanwhile other work gets its turn many times."""

    async def count_turns() -> int:
        table = RouteTable(120)
        requests = [registration(many(10_000), f"broker-{letter}") for letter in "abcde"]

        async def register(session: int, request: nameserver_pb2.RegisterRequest) -> None:
            table.register(session, await read_registration(request, table.topics()), now=0)

        registering = asyncio.gather(*(register(session, request) for session, request in enumerate(requests)))
        turns = 0
        while not registering.done():
            await asyncio.sleep(0)
            turns += 1
        await registering
        route = table.route("topic-9999")
        assert route is not None
        assert len(route.queues) == 5
        return turns

    assert asyncio.run(count_turns()) >= 10_000 // 250
