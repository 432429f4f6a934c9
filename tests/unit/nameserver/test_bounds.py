"""A name server holds a bounded amount, and keeps what it has accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from minimq_common.errors import InvalidArgument, SystemBusy
from minimq_common.model import Permission, QueueData
from minimq_common.wire.protocol_bounds import MAX_TOPICS
from minimq_nameserver import offline_brokers, route_table
from minimq_nameserver.registrations import read_registration
from minimq_nameserver.route_table import BrokerState, RouteTable
from minimq_proto.v1 import nameserver_pb2
from support.cases import for_each


def state(name: str, topics: Sequence[str], version: int = 1) -> BrokerState:
    queues = {topic: QueueData(name, 8, 4, Permission.READ_WRITE) for topic in topics}
    return BrokerState("default", name, 0, f"{name}:1", version, Permission.READ_WRITE, queues)


def many(count: int, prefix: str = "t") -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


# ---- The table -----------------------------------------------------------------------------------


def test_there_are_no_more_brokers_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "MAX_REGISTERED_BROKERS", 2)
    table = RouteTable(120)
    table.register(1, state("broker-a", ["orders"]), now=0)
    table.register(2, state("broker-b", ["orders"]), now=0)
    with pytest.raises(SystemBusy, match="2 brokers are registered"):
        table.register(3, state("broker-c", ["orders"]), now=0)
    assert [broker.broker_name for broker in table.brokers()] == ["broker-a", "broker-b"]
    table.register(1, state("broker-a", ["orders", "bills"], version=2), now=0)
    table.register(4, state("broker-b", ["orders"]), now=0)  # it comes back over another stream
    table.unregister(1, now=0)
    table.register(3, state("broker-c", ["orders"]), now=0)


def test_there_are_no_more_topics_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "MAX_ROUTED_TOPICS", 10)
    table = RouteTable(120)
    table.register(1, state("broker-a", many(8)), now=0)
    with pytest.raises(SystemBusy, match="there are 8 topics, and the limit is 10"):
        table.register(2, state("broker-b", many(3, "other")), now=0)
    table.register(2, state("broker-b", [*many(8), *many(2, "other")]), now=0)
    with pytest.raises(SystemBusy, match="there are 10 topics"):
        table.register(1, state("broker-a", [*many(8), "new"], version=2), now=0)
    route = table.route("t-0")
    assert route is not None
    assert len(route.queues) == 2
    table.register(1, state("broker-a", many(4), version=3), now=0)


def test_all_brokers_together_carry_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "MAX_CARRIED", 20)
    table = RouteTable(120)
    table.register(1, state("broker-a", many(10)), now=0)
    table.register(2, state("broker-b", many(10)), now=0)
    with pytest.raises(SystemBusy, match="carry 20 topics, and the limit is 20"):
        table.register(3, state("broker-c", many(1)), now=0)
    table.register(1, state("broker-a", many(10), version=2), now=0)
    table.unregister(2, now=0)
    table.register(3, state("broker-c", many(10)), now=0)


def test_brokers_that_went_are_forgotten_when_they_have_too_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_brokers, "MAX_OFFLINE_TOPICS", 10)
    table = RouteTable(120, remember_offline_s=100, remember_offline=5)
    for session, name in enumerate("abc"):
        table.register(session, state(name, many(4, name)), now=0)
    assert table.unregister(0, now=1).topics == set(many(4, "a"))
    table.unregister(1, now=2)
    assert [each.broker.broker_name for each in table.offline.all()] == ["a", "b"]
    assert table.unregister(2, now=3).topics == {*many(4, "a"), *many(4, "c")}
    assert [each.broker.broker_name for each in table.offline.all()] == ["b", "c"]


def registration(topics: Sequence[str]) -> nameserver_pb2.RegisterRequest:
    request = nameserver_pb2.RegisterRequest(
        cluster="default", broker_name="broker-a", address="h:1", data_version=7, permission=6
    )
    request.groups.add(topics=topics, read_queues=8, write_queues=4, permission=6)
    return request


@for_each("count", [0, 1, 499, 500, 501, 3000])
def test_a_registration_is_read_whole(count: int) -> None:
    found = asyncio.run(read_registration(registration(many(count)), ()))
    assert found == replace(state("broker-a", many(count), version=7), address="h:1")


def test_a_broker_registers_no_more_topics_than_one_may_have() -> None:
    request = registration(many(MAX_TOPICS))
    assert len(asyncio.run(read_registration(request, ())).topics) == MAX_TOPICS
    request.groups.add(topics=["one-more"])
    with pytest.raises(InvalidArgument, match="over 50,000 topics"):
        asyncio.run(read_registration(request, ()))
