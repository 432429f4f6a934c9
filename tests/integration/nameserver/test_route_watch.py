"""Changes of routes, on their way to clients."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq.connection.routes import Routes, RouteWatch
from minimq_common.errors import TopicNotFound
from minimq_common.model import TopicRoute
from minimq_common.wire import rpc
from minimq_nameserver.server import NameServer
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc
from support.fake_broker import brokers_of
from support.loop_thread import LoopThread
from support.starting import OpenCache, StartBroker, StartNameServer
from support.waiting import wait_until


async def hang(watch: RouteWatch, nameserver: str) -> bool:
    """Stand for a watch that tells nothing, whatever happens."""
    await asyncio.Event().wait()
    return False


def test_a_change_reaches_the_client_before_it_asks_again(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    cache = open_cache(nameserver.address, poll_s=3_600)
    arrived: list[list[str]] = []
    cache.on_change(lambda route: arrived.append(brokers_of(route)))

    def fail(route: TopicRoute) -> None:
        raise RuntimeError("a callback that fails disturbs nobody")

    cache.on_change(fail)
    cache.route("orders")
    with pytest.raises(TopicNotFound):
        cache.route("later")
    cache.watch("later")

    other = start_broker(nameserver.address, name="broker-b", topics=())
    for topics, expected in ((("orders",), ["broker-a", "broker-b"]), ((), ["broker-a"])):
        other.carry(*topics)
        wait_until(lambda expected=expected: arrived and arrived[-1] == expected)  # type: ignore[misc]
    assert brokers_of(cache.route("orders")) == ["broker-a"]

    other.carry("later")
    wait_until(lambda: arrived[-1] == ["broker-b"])
    assert brokers_of(cache.route("later")) == ["broker-b"]


def test_the_watch_begins_anew_with_every_poll(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    cache = open_cache(nameserver.address, poll_s=0.1)
    cache.route("orders")
    opened: list[str] = []
    open_watch = RouteWatch._open

    def open_and_note(watch: RouteWatch, nameserver: str) -> object:
        opened.append(nameserver)
        return open_watch(watch, nameserver)

    monkeypatch.setattr(RouteWatch, "_open", open_and_note)
    wait_until(lambda: len(opened) >= 4)
    broker.carry("orders", "more")
    assert cache.route("more").queues


def test_the_watch_survives_what_nobody_foresaw(
    start_nameserver: StartNameServer,
    start_broker: StartBroker,
    open_cache: OpenCache,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    keep, failed = Routes._keep, threading.Event()

    def fail_once(routes: Routes, route: TopicRoute, *, asked_at: int | None = None) -> TopicRoute:
        if asked_at is None and not failed.is_set():
            failed.set()
            raise RuntimeError("a defect")
        return keep(routes, route, asked_at=asked_at)

    monkeypatch.setattr(Routes, "_keep", fail_once)
    cache = open_cache(nameserver.address)
    cache.route("orders")
    assert failed.wait(30)
    start_broker(nameserver.address, name="broker-b")
    wait_until(lambda: brokers_of(cache.route("orders")) == ["broker-a", "broker-b"])
    assert "routes: not watched" in caplog.text


def test_routes_are_asked_for_when_the_watch_is_lost(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)

    monkeypatch.setattr(RouteWatch, "_follow", hang)
    cache = open_cache(nameserver.address, poll_s=0.1)
    assert brokers_of(cache.route("orders")) == ["broker-a"]
    start_broker(nameserver.address, name="broker-b")
    wait_until(lambda: brokers_of(cache.route("orders")) == ["broker-a", "broker-b"])


# ---- What is watched -------------------------------------------------------------------------------


def watched(nameserver: NameServer) -> set[str]:
    return {topic for watcher in list(nameserver._service.watchers._all) for topic in watcher.topics}


def test_a_topic_that_is_not_found_leaves_nothing(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    for number in range(10):
        with pytest.raises(TopicNotFound):
            cache.route(f"typo-{number}")
    assert cache.routes._tasks == []
    cache.route("orders")
    wait_until(lambda: watched(nameserver) == {"orders"})
    assert (cache.table.watched(), list(cache.table.known)) == (["orders"], ["orders"])
    wait_until(lambda: list(cache.table._versions) == ["orders"])


def test_a_forgotten_topic_is_asked_for_anew(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address, topics=("orders", "other"))
    cache = open_cache(nameserver.address)
    for topic in ("orders", "other"):
        cache.route(topic)
    wait_until(lambda: watched(nameserver) == {"orders", "other"} and len(cache.table._versions) == 2)
    broker.carry("other")
    cache.forget("orders")
    cache.forget("orders")
    cache.forget("never")
    assert cache.known("orders") is None
    assert list(cache.table._versions) == ["other"]
    wait_until(lambda: watched(nameserver) == {"other"})
    with pytest.raises(TopicNotFound):
        cache.route("orders")
    broker.carry("orders", "other")
    assert cache.route("orders").queues
    wait_until(lambda: watched(nameserver) == {"orders", "other"})


def test_what_the_watch_had_on_its_way_does_not_bring_a_forgotten_topic_back(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    late = cache.route("orders")
    cache.forget("orders")
    cache.table._keep(late)
    assert cache.known("orders") is None


def test_a_topic_can_be_watched_before_it_exists(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address, topics=())
    cache = open_cache(nameserver.address)
    told: list[str] = []
    cache.on_change(lambda route: told.append(route.topic))
    cache.watch("later")
    wait_until(lambda: watched(nameserver) == {"later"})
    broker.carry("later")
    wait_until(lambda: told == ["later"])
    assert cache.known("later") is not None


def test_a_watch_that_has_ended_leaves_nothing(start_nameserver: StartNameServer) -> None:
    nameserver = start_nameserver()
    with rpc.open_channel(nameserver.address) as channel:
        stub = nameserver_pb2_grpc.NameServerStub(channel)
        for _ in range(3):
            list(stub.WatchRoutes(iter([nameserver_pb2.WatchRoutesRequest(topics=["orders"])])))
    wait_until(lambda: not nameserver._service.watchers)


def test_the_watch_moves_on_to_the_other_name_server(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    servers = {server.address: server for server in (start_nameserver(), start_nameserver())}
    stays, leaves = (start_broker(*servers, name=name) for name in ("broker-a", "broker-b"))
    wait_until(lambda: stays.connected_to(*servers) and leaves.connected_to(*servers))
    cache = open_cache(*servers)
    assert brokers_of(cache.route("orders")) == ["broker-a", "broker-b"]
    loop.run(servers[cache.nameservers.preferred].stop())
    wait_until(lambda: len(leaves.registration.connected) == 1)
    leaves.carry()
    wait_until(
        lambda: brokers_of(cache.route("orders")) == ["broker-a"]
    )  # answered from memory: only the watch changes it


@pytest.mark.system
def test_a_new_queue_gets_its_first_message_in_under_100_ms() -> None:
    with (
        LocalCluster(brokers=1) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver) as producer,
    ):
        admin.create_topic("orders", queues=1)
        arrived: dict[int, float] = {}
        queues = itertools.count(2)
        stop = threading.Event()

        def send() -> None:
            while not stop.is_set():
                receipt = producer.send(Message("orders", b"x"))
                arrived.setdefault(receipt.queue.queue_id, time.monotonic())

        sending = threading.Thread(target=send, name="sending")
        sending.start()

        def is_quick() -> bool:  # others may have to wait for a core
            count = next(queues)
            admin.update_topic("orders", read_queues=count, write_queues=count)
            changed = time.monotonic()
            wait_until(lambda: len(arrived) == count, 30)
            return arrived[count - 1] - changed < 0.1

        try:
            wait_until(lambda: 0 in arrived, 30)
            wait_until(is_quick, 60)
        finally:
            stop.set()
            sending.join()


@pytest.mark.fault
@pytest.mark.system
@pytest.mark.parametrize("asked", [False, True], ids=["silent", "asked"])
def test_a_change_gets_past_a_name_server_that_hangs(
    open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    if asked:
        monkeypatch.setattr(RouteWatch, "_follow", hang)
    with LocalCluster(brokers=2, nameservers=2) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("orders", queues=1)
        cache = open_cache(*(server.address for server in cluster.nameservers))
        cache.route("orders")
        if not asked:
            wait_until(lambda: "orders" in cache.table._versions, what="the first event of the watch")
        preferred = cache.nameservers.preferred
        [hangs] = [server for server in cluster.nameservers if server.address == preferred]
        hangs.pause()
        try:
            cluster.brokers[1].kill()

            def has_come() -> bool:
                if asked:  # the other name server may not know it yet
                    cache.refresh_soon("orders")
                return brokers_of(cache.route("orders")) == ["broker-a"]

            wait_until(has_come, 60, what="the change comes from the other name server")
        finally:
            hangs.resume()
