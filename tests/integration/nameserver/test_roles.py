"""Masters, slaves and permissions: what changes of them do to routes, as a watching client sees it."""

from __future__ import annotations

import pytest

from minimq_common.model import Permission
from support.open_routes import OpenRoutes
from support.starting import OpenCache, StartBroker, StartNameServer
from support.waiting import wait_until

READ, READ_WRITE = Permission.READ, Permission.READ_WRITE


def shown(cache: OpenRoutes) -> tuple[dict[int, str], Permission]:
    """Return the addresses of broker-a, and what may be done with its queues, from memory."""
    route = cache.known("orders")
    assert route is not None
    [data] = route.queues
    return dict(route.brokers["broker-a"].addresses), data.permission


def test_a_broker_is_wiped_and_restored(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    cache.route("orders")
    master = {0: "broker-a-0:10911"}
    for permission in (READ, READ_WRITE, READ, READ_WRITE):
        broker.tell(permission=permission)
        wait_until(lambda permission=permission: shown(cache) == (master, permission))  # type: ignore[misc]
        assert bool(cache.route("orders").write_queues()) == (permission == READ_WRITE)
        assert len(cache.route("orders").read_queues()) == 4


def test_the_permission_of_a_topic_changes(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address, topics=("orders", "other"))
    cache = open_cache(nameserver.address)
    cache.route("orders")
    other = cache.route("other")
    for permission in (READ, READ_WRITE):
        broker.request.topics[0].permission = permission
        broker.tell()
        wait_until(lambda permission=permission: shown(cache)[1] == permission)  # type: ignore[misc]
    assert cache.route("other") is other


@pytest.mark.parametrize("master_goes_first", [True, False])
def test_a_slave_is_promoted(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache, master_goes_first: bool
) -> None:
    nameserver = start_nameserver()
    master = start_broker(nameserver.address)
    slave = start_broker(nameserver.address, broker_id=1)
    cache = open_cache(nameserver.address)
    cache.route("orders")
    wait_until(lambda: shown(cache)[0] == {0: "broker-a-0:10911", 1: "broker-a-1:10911"})
    slave.request.data_version = master.request.data_version
    if master_goes_first:
        master.stop()
        wait_until(lambda: shown(cache) == ({1: "broker-a-1:10911"}, READ))
        assert cache.route("orders").write_queues() == []
        assert len(cache.route("orders").read_queues()) == 4
        slave.tell(broker_id=0)
        wait_until(lambda: shown(cache) == ({0: "broker-a-1:10911"}, READ_WRITE))
    else:
        slave.tell(broker_id=0)
        wait_until(lambda: shown(cache) == ({0: "broker-a-1:10911"}, READ_WRITE))
        wait_until(lambda: not master.registration.connected, what="the refusal of the old master")
        master.stop()
    assert shown(cache) == ({0: "broker-a-1:10911"}, READ_WRITE)
    assert slave.connected_to(nameserver.address)


def test_a_master_is_demoted(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    cache.route("orders")
    broker.tell(broker_id=1)
    wait_until(lambda: shown(cache) == ({1: "broker-a-0:10911"}, READ))
    broker.tell(broker_id=0)
    wait_until(lambda: shown(cache) == ({0: "broker-a-0:10911"}, READ_WRITE))
