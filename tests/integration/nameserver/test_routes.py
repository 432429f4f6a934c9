"""Routes as clients ask for them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import pytest

from minimq.connection.routes import RouteWatch
from minimq_common.errors import Closed, InvalidArgument, TopicNotFound, TopicUnavailable, Unavailable
from minimq_common.model import TopicRoute
from minimq_common.wire import rpc
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc
from support.fake_broker import brokers_of, registered
from support.loop_thread import LoopThread
from support.nameserver_client import NameServerClient
from support.open_routes import OpenRoutes
from support.starting import OpenCache, StartBroker, StartNameServer
from support.waiting import wait_until

NOBODY = "127.0.0.1:1"


def test_a_client_finds_what_brokers_registered(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache, cleanup: contextlib.ExitStack
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address, topics=("orders", "%RETRY%g"))
    start_broker(nameserver.address, broker_id=1)
    start_broker(nameserver.address, name="broker-b")
    cache = open_cache(nameserver.address)

    route = cache.route("orders")
    assert brokers_of(route) == ["broker-a", "broker-b"]
    assert len(route.write_queues()) == len(route.read_queues()) == 8
    assert route.brokers["broker-a"].addresses == {0: "broker-a-0:10911", 1: "broker-a-1:10911"}
    links = NameServerClient(nameserver.address)
    cleanup.callback(links.close)
    assert [route.topic for route in links.topics()] == links.topic_names() == ["%RETRY%g", "orders"]
    with rpc.open_channel(nameserver.address) as channel:
        listed = nameserver_pb2_grpc.NameServerStub(channel).GetRoutes(nameserver_pb2.GetRoutesRequest(names_only=True))
    assert listed == (nameserver_pb2.GetRoutesResponse(names=["%RETRY%g", "orders"]))
    assert [(broker.broker_name, broker.cluster) for broker in registered(nameserver.address)] == [
        ("broker-a", "default"),
        ("broker-b", "default"),
    ]


def test_errors_say_what_to_do(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    cache = open_cache(nameserver.address)
    with pytest.raises(TopicUnavailable, match=r"no broker is registered .*`minimq-broker --nameserver"):
        cache.route("orders")
    start_broker(nameserver.address)
    with pytest.raises(TopicNotFound, match="`minimq topic create other`"):
        cache.route("other")
    with pytest.raises(InvalidArgument, match="illegal topic name"):
        cache.route("a/b")
    with pytest.raises(InvalidArgument, match="no name server is given"):
        OpenRoutes(())
    with pytest.raises(Unavailable, match=f"no name server listening at {NOBODY}: start one with"):
        open_cache(NOBODY).route("orders")
    with pytest.raises(Unavailable, match=rf"none of 2 .*{NOBODY}: nothing listens there; .*no\.such\.host\.invalid:1"):
        open_cache(NOBODY, "no.such.host.invalid:1").route("orders")


def test_a_topic_that_one_name_server_does_not_know_is_asked_of_the_others(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    one, two = start_nameserver(), start_nameserver()
    start_broker(one.address)
    for _ in range(4):  # which one is asked first is random
        assert open_cache(one.address, two.address).route("orders").queues


def test_a_name_server_that_hangs_leaves_time_for_the_other(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        hanging = f"127.0.0.1:{silent.getsockname()[1]}"
        cache = open_cache(hanging, nameserver.address, timeout_s=10)
        assert cache.route("orders").queues
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+ does not answer"):
            open_cache(hanging, timeout_s=0.3).route("orders")


def test_an_answer_that_was_overtaken_by_the_watch_is_dropped(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    cache.route("orders")
    wait_until(lambda: "orders" in cache.table._versions, what="the first event of the watch")
    ask = cache.nameservers.route

    async def ask_and_dawdle(topic: str, timeout_s: float) -> TopicRoute:
        answer = await ask(topic, timeout_s)
        await asyncio.to_thread(start_broker, nameserver.address, name="broker-b")
        while len(cache.route("orders").queues) < 2:  # noqa: ASYNC110 - the watch's doing, which tells nobody
            await asyncio.sleep(0.001)
        return answer

    monkeypatch.setattr(cache.nameservers, "route", ask_and_dawdle)
    assert brokers_of(cache.refresh("orders")) == ["broker-a", "broker-b"]
    assert brokers_of(cache.route("orders")) == ["broker-a", "broker-b"]


def test_a_known_route_outlives_its_broker_and_its_name_server(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    cache = open_cache(nameserver.address, poll_s=0.2)
    known = cache.route("orders")
    broker.stop()
    wait_until(lambda: registered(nameserver.address) == [])
    assert cache.refresh("orders") == known
    loop.run(nameserver.stop())
    assert cache.refresh("orders") == cache.route("orders") == known
    with pytest.raises(Unavailable):
        cache.route("other")


def test_a_closed_cache_leaves_no_thread(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    before = set(threading.enumerate())
    caches = [open_cache(nameserver.address, NOBODY) for _ in range(5)]
    for cache in caches:
        cache.route("orders")
        cache.refresh_soon("orders")
        cache.close()
        cache.close()
        cache.refresh_soon("orders")
        for call in (cache.route, cache.refresh):
            with pytest.raises(Closed):
                call("orders")
    wait_until(lambda: set(threading.enumerate()) <= before, what="the end of all threads")


def test_closing_ends_a_question_under_way(open_cache: OpenCache) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cache = open_cache(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=30)
        raised: list[BaseException] = []

        def ask() -> None:
            try:
                cache.route("orders")
            except Closed as error:
                raised.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        with silent.accept()[0]:  # the question has been asked
            cache.close()
            thread.join(60)
    assert raised


async def hang(watch: RouteWatch, nameserver: str) -> bool:
    """Stand for a watch that tells nothing, whatever happens."""
    await asyncio.Event().wait()
    return False


# ---- Questions in the background -------------------------------------------------------------------


def test_a_refresh_in_the_background_brings_what_the_watch_did_not_tell(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    monkeypatch.setattr(RouteWatch, "_follow", hang)
    cache.route("orders")
    start_broker(nameserver.address, name="broker-b")
    assert brokers_of(cache.route("orders")) == ["broker-a"]
    cache.refresh_soon("orders")
    wait_until(lambda: brokers_of(cache.route("orders")) == ["broker-a", "broker-b"])


def test_a_refresh_in_the_background_never_blocks_and_asks_seldom(open_cache: OpenCache) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cache = open_cache(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=100)
        began = time.monotonic()
        for _ in range(1000):
            cache.refresh_soon("orders")
        cache.refresh_soon("not a name")
        assert time.monotonic() - began < 50
        with silent.accept()[0]:
            began = time.monotonic()
            cache.close()
            assert time.monotonic() - began < 50, "the question under way had to be waited for"
    cache.refresh_soon("orders")
