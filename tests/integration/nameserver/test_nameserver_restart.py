"""Name servers that go and come back."""

from __future__ import annotations

import pytest

from minimq_common.errors import SystemBusy, TopicUnavailable
from support.fake_broker import brokers_of
from support.loop_thread import LoopThread
from support.starting import OpenCache, StartBroker, StartNameServer
from support.waiting import wait_until


def test_a_restarted_name_server_is_not_mistaken_for_an_empty_one(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    first = start_nameserver()
    brokers = [start_broker(first.address, name=name) for name in ("broker-a", "broker-b")]
    cache = open_cache(first.address)
    told: dict[str, set[str]] = {}
    full = cache.route("orders")
    wait_until(lambda: "orders" in cache.table._versions, what="the first event of the watch")
    cache.on_change(lambda route: told.setdefault(route.topic, set()).add(str(brokers_of(route))))

    loop.run(first.stop())
    wait_until(lambda: not any(broker.registration.connected for broker in brokers))
    start_nameserver(first.address, grace_s=1.5)

    # A client that knows nothing is asked to wait, and finds the topic as soon as a broker is back.
    assert brokers_of(open_cache(first.address).route("orders"))[:1]
    wait_until(lambda: all(broker.connected_to(first.address) for broker in brokers))
    brokers[0].carry("orders", "new")
    assert cache.route("new").queues
    wait_until(lambda: cache.table._versions.get("orders", 0) >= 2, what="the watch of the new name server")
    assert cache.route("orders") == full
    assert told.pop("new") == {"['broker-a']"}
    assert told in ({}, {"orders": {"['broker-a', 'broker-b']"}}), "no partial route"


def test_the_grace_ends(start_nameserver: StartNameServer, open_cache: OpenCache) -> None:
    with pytest.raises(SystemBusy, match="has just started") as raised:
        open_cache(start_nameserver(grace_s=600.0).address, timeout_s=1.5).route("orders")
    assert raised.value.retry_after_s > 0
    with pytest.raises(TopicUnavailable):
        open_cache(start_nameserver(grace_s=0.5).address).route("orders")


def test_two_name_servers_back_each_other_up(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    one, two = start_nameserver(), start_nameserver()
    broker = start_broker(one.address, two.address)
    wait_until(lambda: broker.connected_to(one.address, two.address))
    cache = open_cache(one.address, two.address)
    cache.route("orders")

    for stopped, left in ((one, two), (two, one)):
        loop.run(stopped.stop())
        wait_until(lambda left=left: broker.connected_to(left.address))  # type: ignore[misc]
        broker.carry("orders", f"without-{stopped.address.replace(':', '-').replace('.', '-')}")
        assert brokers_of(cache.route(broker.request.groups[0].topics[1])) == ["broker-a"]
        start_nameserver(stopped.address)
        wait_until(lambda: broker.connected_to(one.address, two.address))
