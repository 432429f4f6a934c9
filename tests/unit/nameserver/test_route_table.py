from __future__ import annotations

from collections.abc import Sequence

import pytest

from minimq_common.errors import BrokerConflict
from minimq_common.model import Permission, QueueData
from minimq_nameserver.route_table import BrokerState, RouteTable
from support.cases import for_each

RW, READ, WRITE, NONE = Permission.READ_WRITE, Permission.READ, Permission.WRITE, Permission.NONE


def state(
    name: str = "broker-a",
    broker_id: int = 0,
    *,
    topics: Sequence[str] = ("orders",),
    address: str | None = None,
    version: int = 1,
    cluster: str = "default",
    permission: Permission = RW,
    topic_permission: Permission = RW,
    replica_id: int | None = None,
    run: int = 1,
) -> BrokerState:
    return BrokerState(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=address or f"{name}-{broker_id}:10911",
        data_version=version,
        permission=permission,
        topics={topic: QueueData(name, 8, 4, topic_permission) for topic in topics},
        replica_id=replica_id,
        run=run,
    )


def table_of(*states: BrokerState) -> RouteTable:
    """A table in which the states are registered in order, with sessions 1, 2, ..."""
    table = RouteTable(expire_after_s=120)
    for session, each in enumerate(states, start=1):
        table.register(session, each, now=0)
    return table


def everything(table: RouteTable) -> object:
    return table.brokers(), [table.route(topic) for topic in sorted(table.topics())]


# ---- What a route says ---------------------------------------------------------------------------


# ---- Two brokers for one place -------------------------------------------------------------------


@for_each("version", [1, 2, 9])
@for_each("address", ["first:1", "second:1"])
def test_a_run_keeps_its_place_until_its_registration_ends(version: int, address: str) -> None:
    first, second = state(address="first:1", version=2), state(address=address, version=version, run=2)
    table = table_of(first)
    before = everything(table)
    with pytest.raises(BrokerConflict, match=rf"{address} is rejected: broker-a \(id 0\) at first:1 is connected"):
        table.register(2, second, now=0)
    assert everything(table) == before
    assert table.unregister(2, now=0).topics == set()
    assert table.holder(first.place, first.run) is None
    assert table.holder(second.place, second.run) == (1, first)
    table.unregister(1, now=0)
    table.register(3, second, now=0)
    assert table.brokers()[0].master == address


def test_a_run_may_return_at_another_address() -> None:
    table = table_of(state(address="first:1"))
    table.register(2, state(address="second:1"), now=0)
    assert table.brokers()[0].master == "second:1"


def test_a_broker_that_moved_takes_its_place_when_the_old_connection_has_expired() -> None:
    table = table_of(state(address="old:1", version=5))
    table.expire(now=120)
    table.register(2, state(address="new:1", version=1, run=2), now=120)
    assert table.brokers()[0].master == "new:1"


@for_each("version", [3, 4])
@for_each("master_goes_first", [True, False])
def test_the_end_of_a_failover_does_not_depend_on_its_order(version: int, master_goes_first: bool) -> None:
    table = table_of(state(broker_id=0, version=3), state(broker_id=1, version=3))
    promoted = state(broker_id=0, address="broker-a-1:10911", version=version, replica_id=1)
    if master_goes_first:
        table.unregister(1, now=0)
        table.register(2, promoted, now=0)
    elif version > 3:
        table.register(2, promoted, now=0)
        table.unregister(1, now=0)
    else:  # it is rejected, its stream ends, and it tries again
        with pytest.raises(BrokerConflict):
            table.register(2, promoted, now=0)
        table.unregister(2, now=0)
        table.unregister(1, now=0)
        table.register(3, promoted, now=0)
    assert everything(table) == everything(table_of(promoted))
    assert table.conflicts.recent(0) == [] or version > 3


@pytest.mark.parametrize(
    ("second", "remedy"),
    [
        (state("broker-b", address="broker-a-0:10911"), "--advertise"),
        (state("broker-a", 1, address="broker-a-0:10911"), "--advertise"),
        (state("broker-a", 1, cluster="other"), "--name"),
    ],
)
def test_set_ups_that_cannot_work_are_rejected(second: BrokerState, remedy: str) -> None:
    table = table_of(state("broker-a"))
    with pytest.raises(BrokerConflict, match=remedy):
        table.register(2, second, now=0)


# ---- Time ----------------------------------------------------------------------------------------


# ---- Values --------------------------------------------------------------------------------------
