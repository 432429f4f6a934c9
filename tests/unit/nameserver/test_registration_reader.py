from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from minimq_common.errors import InvalidArgument
from minimq_common.model import MAX_QUEUES, Permission, QueueData
from minimq_nameserver.registrations import read_registration
from minimq_nameserver.route_table import BrokerState, RouteTable
from minimq_proto.v1 import nameserver_pb2
from support.cases import for_each


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


def read(request: nameserver_pb2.RegisterRequest) -> BrokerState:
    return asyncio.run(read_registration(request, ()))


def many(count: int) -> list[str]:
    return [f"topic-{number}" for number in range(count)]


@for_each("count", [0, 1, 500, 501, 3000])
def test_everything_is_read(count: int) -> None:
    state = read(registration(many(count), broker_id=2, data_version=7))
    assert (state.cluster, state.broker_name, state.broker_id, state.address) == (
        "default",
        "broker-a",
        2,
        "broker-a:1",
    )
    assert (state.data_version, state.permission) == (7, Permission.READ_WRITE)
    assert state.topics == dict.fromkeys(many(count), QueueData("broker-a", 8, 4, Permission.READ_WRITE))


@pytest.mark.parametrize("topic", ["", "a/b", "x" * 128])
def test_a_name_that_is_none_is_rejected(topic: str) -> None:
    with pytest.raises(InvalidArgument, match="topic name"):
        read(registration([*many(2000), topic]))


def test_numbers_that_are_none_are_rejected() -> None:
    for count in (-1, MAX_QUEUES + 1, (1 << 31) - 1):
        with pytest.raises(InvalidArgument, match="the limit is 1024"):
            read(registration(["orders"], read_queues=count))
    with pytest.raises(InvalidArgument, match="must not be negative"):
        read(registration(["orders"], broker_id=-1))


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


def test_other_work_goes_on_while_a_table_of_many_groups_is_read() -> None:
    request = registration([])
    for number in range(200):
        topics = [f"topic-{number}-{each}" for each in range(200)]
        request.groups.add(topics=topics, read_queues=1 + number, write_queues=4, permission=6)

    async def count_turns() -> int:
        reading = asyncio.ensure_future(read_registration(request, ()))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(reading.result().topics) == 200 * 200
        return turns

    assert asyncio.run(count_turns()) > 90
