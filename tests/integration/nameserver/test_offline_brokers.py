"""Brokers that have gone, over real connections."""

from __future__ import annotations

import contextlib

import pytest

from minimq_common.errors import InvalidArgument, TopicUnavailable
from minimq_nameserver.server import NameServer
from support.fake_broker import brokers_of
from support.nameserver_client import NameServerClient
from support.starting import OpenCache, StartBroker, StartNameServer
from support.waiting import wait_until


@pytest.fixture
def nameserver(start_nameserver: StartNameServer) -> NameServer:
    return start_nameserver()


@pytest.fixture
def links(nameserver: NameServer, cleanup: contextlib.ExitStack) -> NameServerClient:
    opened = NameServerClient(nameserver.address)
    cleanup.callback(opened.close)
    return opened


def test_a_broker_that_comes_back_empty_is_still_offline_for_what_it_lacks(
    start_nameserver: StartNameServer,
    start_broker: StartBroker,
    cleanup: contextlib.ExitStack,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = start_nameserver(), start_nameserver()
    links = NameServerClient(first.address, second.address)
    cleanup.callback(links.close)
    start_broker(second.address, name="broker-b", topics=("bills",)).stop()
    start_broker(second.address, name="broker-b", topics=())
    for nameserver in (first, second):
        start_broker(nameserver.address, name="broker-a", topics=("orders",))
    assert [(offline.broker_name, offline.queues) for offline in links.offline()] == [("broker-b", 4)]
    [warning] = [each.getMessage() for each in caplog.records if "without topics" in each.getMessage()]
    assert warning.endswith("missing=1 topic=bills")
    with pytest.raises(TopicUnavailable, match="broker-b is online without topics"):
        links.route("bills")
    with pytest.raises(InvalidArgument, match="broker-a is registered"):
        links.forget("broker-a")
    assert links.forget("broker-b")
    assert links.offline() == []


def test_offline_brokers_may_be_forgotten_at_once(
    start_nameserver: StartNameServer, start_broker: StartBroker, cleanup: contextlib.ExitStack
) -> None:
    nameserver = start_nameserver(remember_offline_s=0.0)
    links = NameServerClient(nameserver.address)
    cleanup.callback(links.close)
    start_broker(nameserver.address).stop()
    assert links.offline() == []


def test_watchers_hear_who_is_offline_and_who_was_forgotten(
    nameserver: NameServer, links: NameServerClient, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    start_broker(nameserver.address, name="broker-b")
    broker = start_broker(nameserver.address, name="broker-a")
    cache = open_cache(nameserver.address)

    def offline() -> list[str]:
        return [each.broker_name for each in cache.route("orders").offline]

    assert offline() == []
    broker.stop()
    wait_until(lambda: offline() == ["broker-a"])
    with pytest.raises(InvalidArgument, match="broker-b is registered"):
        links.forget("broker-b")
    assert links.forget("broker-a")
    wait_until(lambda: offline() == [])
    assert not links.forget("broker-a")


def test_a_broker_that_another_name_server_has_is_not_offline(
    start_nameserver: StartNameServer, start_broker: StartBroker, cleanup: contextlib.ExitStack
) -> None:
    first, second = start_nameserver(), start_nameserver()
    start_broker(first.address).stop()
    start_broker(second.address)
    links = NameServerClient(first.address, second.address)
    cleanup.callback(links.close)
    assert links.offline() == []
    assert brokers_of(links.route("orders")) == ["broker-a"]
