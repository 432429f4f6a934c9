"""Brokers that have gone, as the route table remembers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from minimq_common.errors import InvalidArgument
from minimq_common.model import BrokerData, Permission, QueueData
from minimq_nameserver.route_table import BrokerState, RouteTable

RW = Permission.READ_WRITE


def state(
    name: str, broker_id: int = 0, *, topics: Sequence[str] = ("orders",), permission: Permission = RW
) -> BrokerState:
    queues = {topic: QueueData(name, 8, 4, permission) for topic in topics}
    return BrokerState("default", name, broker_id, f"{name}-{broker_id}:1", 1, RW, queues)


def table_of(*states: BrokerState, remember_s: float = 100.0, most: int = 10) -> RouteTable:
    """A table in which the states are registered in order, with sessions 1, 2, ..."""
    table = RouteTable(10, remember_s, most)
    for session, each in enumerate(states, start=1):
        table.register(session, each, now=0)
    return table


def names_of(table: RouteTable, topic: str | None = None) -> list[str]:
    return [
        offline.broker.broker_name for offline in (table.offline.all() if topic is None else table.offline.of(topic))
    ]


@pytest.mark.parametrize("stopped", [True, False])
def test_a_broker_that_has_gone_is_remembered_and_no_route_leads_there(stopped: bool) -> None:
    table = table_of(state("broker-a", topics=["orders", "bills"]), state("broker-b"))

    assert table.unregister(1, now=7, stopped=stopped).topics == {"orders", "bills"}

    [offline] = table.offline.of("orders")
    assert offline.broker == BrokerData("default", "broker-a", {0: "broker-a-0:1"})
    assert (offline.since, offline.stopped) == (7, stopped)
    counts = [(offline.queues(kind), offline.queues(kind, "orders")) for kind in (Permission.READ, Permission.WRITE)]
    assert counts == [(16, 8), (8, 4)]
    route = table.route("orders")
    assert route is not None
    assert [data.broker_name for data in route.queues] == list(route.brokers) == ["broker-b"]
    assert table.route("bills") is None
    assert sorted(table.offline_topics()) == ["bills"]
    assert [broker.broker_name for broker in table.brokers()] == ["broker-b"]


def test_a_broker_is_not_offline_while_a_slave_can_be_read() -> None:
    table = table_of(state("broker-a"), state("broker-a", 1))
    table.unregister(1, now=1)
    assert table.offline.all() == []
    table.unregister(2, now=2)
    assert names_of(table, "orders") == ["broker-a"]


def test_what_a_broker_of_the_name_lacks_is_offline_until_it_has_it() -> None:
    table = table_of(state("broker-a", topics=["orders", "bills"]))
    table.unregister(1, now=1)
    table.register(2, state("broker-a", topics=[]), now=2)
    assert set(table.offline.missing_from("broker-a")) == {"orders", "bills"}
    assert [(offline.queues(Permission.READ), offline.since) for offline in table.offline.all()] == [(16, 1)]
    assert sorted(table.offline_topics()) == ["bills", "orders"]

    table.register(2, replace(state("broker-a", topics=["orders"]), data_version=2), now=3)
    assert [offline.queues(Permission.READ) for offline in table.offline.of("bills")] == [8]
    assert (table.offline.of("orders"), sorted(table.offline_topics())) == ([], ["bills"])

    table.unregister(2, now=4)
    assert [(offline.queues(Permission.READ), offline.since) for offline in table.offline.all()] == [(16, 4)]
    table.register(3, state("broker-a", topics=["orders", "bills"]), now=5)
    assert table.offline.all() == []


def test_what_a_registered_broker_lacks_is_forgotten_after_a_while_or_when_told_so() -> None:
    table = table_of(state("broker-a", topics=["orders"]), state("broker-b", topics=["bills"]))
    table.unregister(1, now=1)
    table.unregister(2, now=2)
    table.register(3, state("broker-a", topics=[]), now=3)
    table.register(4, state("broker-b", topics=[]), now=3)
    change = table.forget("broker-a")
    assert change is not None
    assert change.topics == {"orders"}
    with pytest.raises(InvalidArgument, match="broker-a is registered: stop it"):
        table.forget("broker-a")
    for session in (3, 4):
        table.heartbeat(session, 1, now=101)
    assert table.expire(now=102).topics == {"bills"}
    assert table.offline.all() == []


def test_a_broker_is_forgotten_after_a_while() -> None:
    table = table_of(state("broker-a"), state("broker-b", topics=["bills"]))
    table.unregister(1, now=5)
    table.unregister(2, now=6)
    assert table.expire(now=104.9).topics == set()
    assert table.expire(now=105).topics == {"orders"}
    assert names_of(table) == ["broker-b"]


def test_of_too_many_brokers_those_that_went_first_are_forgotten() -> None:
    table = table_of(*(state(f"broker-{letter}", topics=[letter]) for letter in "abc"), most=2)
    for session in (1, 2):
        table.unregister(session, now=session)
    assert table.unregister(3, now=3).topics == {"a", "c"}
    assert names_of(table) == ["broker-b", "broker-c"]
