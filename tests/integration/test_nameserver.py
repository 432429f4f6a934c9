"""Name server, registration of brokers and route cache of clients, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from minimq.routing import RouteCache
from minimq_broker.options import BrokerOptions
from minimq_broker.registration import Registration
from minimq_broker.server import Broker
from minimq_common import rpc
from minimq_common.errors import BrokerConflict, Closed, InvalidArgument, SystemBusy, TopicNotFound, Unavailable
from minimq_common.model import TopicRoute
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc
from support.loop_thread import LoopThread
from support.waiting import wait_until

NOBODY = "127.0.0.1:1"


class Line:
    """A connection to a name server that can be cut so that neither side sees it end. Lives on one event loop."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._is_cut = False
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> str:
        """Return the address that leads to the name server."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        self._is_cut = True

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self._writers += [writer, far_writer]
        await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if not self._is_cut:
                writer.write(data)


class FakeBroker:
    """A broker that does nothing but register."""

    def __init__(
        self, loop: LoopThread, *nameservers: str, name: str = "broker-a", broker_id: int = 0, timeout_s: float = 2
    ) -> None:
        self._loop = loop
        self.request = nameserver_pb2.RegisterRequest(
            cluster="default",
            broker_name=name,
            broker_id=broker_id,
            address=f"{name}-{broker_id}:10911",
            permission=6,
        )
        self.registration = loop.call(
            lambda: Registration(nameservers, self.describe, heartbeat_s=0.1, timeout_s=timeout_s)
        )
        loop.call(self.registration.start)

    def describe(self) -> nameserver_pb2.RegisterRequest:
        copy = nameserver_pb2.RegisterRequest()
        copy.CopyFrom(self.request)
        return copy

    def carry(self, *topics: str) -> None:
        """Replace the topics, and wait until the connected name servers show those of a master."""
        del self.request.topics[:]
        for topic in topics:
            self.request.topics.add(topic=topic, read_queues=4, write_queues=4, permission=6)
        self.request.data_version += 1
        self._loop.call(self.registration.changed)
        if not self.request.broker_id:
            for address in self.registration.connected:
                wait_until(lambda address=address: self.carried(address) == set(topics))  # type: ignore[misc]

    def carried(self, nameserver: str) -> set[str]:
        """Return the topics that routes of a name server find here."""
        with rpc.open_channel(nameserver) as channel:
            stub = nameserver_pb2_grpc.NameServerStub(channel)
            routes = stub.ListTopics(nameserver_pb2.ListTopicsRequest()).routes
        return {
            route.topic for route in routes for queues in route.queues if queues.broker_name == self.request.broker_name
        }

    def connected_to(self, *addresses: str) -> bool:
        return set(self.registration.connected) == set(addresses)

    def stop(self) -> None:
        self._loop.run(self.registration.stop())


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def cleanup() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


StartNameServer = Callable[..., NameServer]
StartBroker = Callable[..., FakeBroker]
OpenCache = Callable[..., RouteCache]


@pytest.fixture
def start_nameserver(loop: LoopThread, cleanup: contextlib.ExitStack) -> StartNameServer:
    def start(listen: str = "127.0.0.1:0", grace_s: float = 0, expire_after_s: float = 120) -> NameServer:
        options = NameServerOptions(
            listen=listen, start_grace_s=grace_s, expire_after_s=expire_after_s, scan_every_s=0.02
        )
        return cleanup.enter_context(loop.serving(NameServer(options)))

    return start


@pytest.fixture
def start_broker(loop: LoopThread, cleanup: contextlib.ExitStack) -> StartBroker:
    def start(
        *nameservers: str, topics: tuple[str, ...] = ("orders",), name: str = "broker-a", broker_id: int = 0
    ) -> FakeBroker:
        broker = FakeBroker(loop, *nameservers, name=name, broker_id=broker_id)
        cleanup.callback(broker.stop)
        wait_until(lambda: broker.registration.connected)
        broker.carry(*topics)
        return broker

    return start


@pytest.fixture
def open_cache(cleanup: contextlib.ExitStack) -> OpenCache:
    def open_it(*nameservers: str, timeout_s: float = 5, poll_s: float = 30) -> RouteCache:
        cache = RouteCache(nameservers, timeout_s=timeout_s, poll_s=poll_s)
        cleanup.callback(cache.close)
        return cache

    return open_it


def brokers_of(route: TopicRoute) -> list[str]:
    return [data.broker_name for data in route.queues]


# ---- Routes ----------------------------------------------------------------------------------------


def test_a_client_finds_what_brokers_registered(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address, topics=("orders", "%RETRY%g"))
    slave = start_broker(nameserver.address, broker_id=1)
    start_broker(nameserver.address, name="broker-b")
    cache = open_cache(nameserver.address)

    route = cache.route("orders")
    assert brokers_of(route) == ["broker-a", "broker-b"]
    assert len(route.write_queues()) == len(route.read_queues()) == 8
    assert route.brokers["broker-a"].addresses == {0: "broker-a-0:10911", 1: "broker-a-1:10911"}
    assert [route.topic for route in cache.topics()] == ["%RETRY%g", "orders"]
    assert [(broker.broker_name, broker.cluster) for broker in cache.cluster()] == [
        ("broker-a", "default"),
        ("broker-b", "default"),
    ]
    assert slave.registration.master_address == "broker-a-0:10911"


def test_errors_say_what_to_do(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    cache = open_cache(nameserver.address)
    with pytest.raises(TopicNotFound, match=r"no broker is registered .*`minimq-broker --nameserver"):
        cache.route("orders")
    start_broker(nameserver.address)
    with pytest.raises(TopicNotFound, match="`minimq topic create other`"):
        cache.route("other")
    with pytest.raises(InvalidArgument, match="illegal topic name"):
        cache.route("a/b")
    with pytest.raises(InvalidArgument, match="no name server is given"):
        RouteCache(())
    with pytest.raises(Unavailable, match=f"no name server listening at {NOBODY}: start one with"):
        open_cache(NOBODY).route("orders")
    with pytest.raises(Unavailable, match=rf"none of 2 .*{NOBODY}: nothing listens there; .*no\.such\.host\.invalid:1"):
        open_cache(NOBODY, "no.such.host.invalid:1").cluster()


# ---- Brokers that go -------------------------------------------------------------------------------


def test_a_broker_that_stops_is_gone_when_stop_returns(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    started = time.monotonic()
    broker.stop()
    assert time.monotonic() - started < 0.9, "it had to be cut off"
    assert cache.cluster() == []


@pytest.mark.fault
@pytest.mark.system
def test_a_killed_broker_is_removed_at_once(start_nameserver: StartNameServer, open_cache: OpenCache) -> None:
    nameserver = start_nameserver()
    program = (
        "import time, sys; from minimq_common import rpc; from minimq_proto.v1 import nameserver_pb2 as pb\n"
        "from minimq_proto.v1.nameserver_pb2_grpc import NameServerStub\n"
        "def requests():\n"
        "    yield pb.RegisterRequest(cluster='default', broker_name='broker-a', address='h:1', permission=6)\n"
        "    time.sleep(60)\n"
        "channel = rpc.open_channel(sys.argv[1])\n"
        "for answer in NameServerStub(channel).Register(requests()): pass\n"
    )
    cache = open_cache(nameserver.address)
    with process(sys.executable, "-c", program, nameserver.address) as broker:
        wait_until(lambda: [each.broker_name for each in cache.cluster()] == ["broker-a"], timeout=20)
        broker.kill()
        broker.wait()
        wait_until(lambda: cache.cluster() == [], timeout=1)


def test_a_silent_broker_expires_and_its_stream_is_ended(
    start_nameserver: StartNameServer, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver(expire_after_s=0.3)
    cache = open_cache(nameserver.address)
    quiet = threading.Event()
    with rpc.open_channel(nameserver.address) as channel:

        def requests() -> Iterator[nameserver_pb2.RegisterRequest]:
            yield nameserver_pb2.RegisterRequest(cluster="default", broker_name="broker-a", address="h:1", permission=6)
            quiet.wait(20)

        stream = nameserver_pb2_grpc.NameServerStub(channel).Register(requests())
        next(stream)
        assert [broker.broker_name for broker in cache.cluster()] == ["broker-a"]
        wait_until(lambda: cache.cluster() == [])
        with pytest.raises(grpc.RpcError) as raised:
            next(stream)
        quiet.set()
    assert re.search(r"no heartbeat of broker-a .* for 0\.\d s", str(raised.value))


def test_heartbeats_keep_a_broker(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver(expire_after_s=0.5)
    broker = start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    end = time.monotonic() + 1.2
    assert wait_until(lambda: cache.cluster() == [] or time.monotonic() > end)
    assert [each.broker_name for each in cache.cluster()] == ["broker-a"]
    assert broker.connected_to(nameserver.address)


def test_two_brokers_of_one_name_do_not_take_turns(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    first = start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    request = first.describe()
    request.address = "second:1"
    with rpc.open_channel(nameserver.address) as channel, pytest.raises(grpc.RpcError) as raised:
        next(nameserver_pb2_grpc.NameServerStub(channel).Register(iter([request])))
    assert isinstance(rpc.from_rpc_error(raised.value, "name server"), BrokerConflict)
    assert cache.route("orders").master_of("broker-a") == "broker-a-0:10911"
    assert first.connected_to(nameserver.address)


def test_a_broker_with_a_new_address_is_taken_while_its_former_stream_seems_to_live(
    loop: LoopThread,
    start_nameserver: StartNameServer,
    open_cache: OpenCache,
    cleanup: contextlib.ExitStack,
    tmp_path: Path,
) -> None:
    nameserver = start_nameserver()
    cache = open_cache(nameserver.address)
    line = Line(nameserver.address)
    cleanup.callback(lambda: loop.run(line.close()))

    def master() -> list[str | None]:
        return [broker.master for broker in cache.cluster()]

    def broker(*nameservers: str) -> Broker:
        return Broker(BrokerOptions(listen="127.0.0.1:0", data_dir=tmp_path, nameservers=nameservers))

    with loop.serving(broker(loop.run(line.open()))) as former:
        wait_until(lambda: master() == [former.address])
        loop.call(line.cut)
    assert master() == [former.address]
    with loop.serving(broker(nameserver.address)) as present:
        wait_until(lambda: master() == [present.address])


# ---- The watch -------------------------------------------------------------------------------------


def test_a_change_reaches_the_client_within_milliseconds(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    arrived: list[tuple[float, list[str]]] = []
    cache.on_change(lambda route: arrived.append((time.monotonic(), brokers_of(route))))

    def fail(route: TopicRoute) -> None:
        raise RuntimeError("a callback that fails disturbs nobody")

    cache.on_change(fail)
    cache.route("orders")
    with pytest.raises(TopicNotFound):
        cache.route("later")  # watched from now on

    other = start_broker(nameserver.address, name="broker-b", topics=())
    delays = []
    for _ in range(10):
        for topics, expected in ((("orders",), ["broker-a", "broker-b"]), ((), ["broker-a"])):
            changed = time.monotonic()
            other.carry(*topics)
            wait_until(lambda expected=expected: arrived and arrived[-1][1] == expected)  # type: ignore[misc]
            delays.append(arrived[-1][0] - changed)
    assert brokers_of(cache.route("orders")) == ["broker-a"]
    assert sorted(delays)[len(delays) // 2] < 0.05

    other.carry("later")
    wait_until(lambda: arrived[-1][1] == ["broker-b"])
    assert brokers_of(cache.route("later")) == ["broker-b"]


def test_the_watch_begins_anew_with_every_poll(
    start_nameserver: StartNameServer,
    start_broker: StartBroker,
    open_cache: OpenCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    cache = open_cache(nameserver.address, poll_s=0.1)
    cache.route("orders")
    opened: list[float] = []
    open_watch = RouteCache._open_watch

    def open_and_note(cache: RouteCache, nameserver: str, requests: Any) -> Iterator[nameserver_pb2.RouteEvent]:  # noqa: ANN401
        opened.append(time.monotonic())
        return open_watch(cache, nameserver, requests)

    monkeypatch.setattr(RouteCache, "_open_watch", open_and_note)
    wait_until(lambda: len(opened) >= 4)
    broker.carry("orders", "more")
    assert cache.route("more").queues
    assert opened[3] - opened[0] < 2


def test_an_answer_that_was_overtaken_by_the_watch_is_dropped(
    start_nameserver: StartNameServer,
    start_broker: StartBroker,
    open_cache: OpenCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    cache = open_cache(nameserver.address)
    cache.route("orders")
    wait_until(lambda: "orders" in cache._versions, what="the first event of the watch")
    ask = cache._nameservers.ask

    def ask_and_dawdle(call: Any) -> object:  # noqa: ANN401
        answer = ask(call)
        start_broker(nameserver.address, name="broker-b")
        wait_until(lambda: len(cache.route("orders").queues) == 2)
        return answer

    monkeypatch.setattr(cache._nameservers, "ask", ask_and_dawdle)
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
    wait_until(lambda: cache.cluster() == [])
    assert cache.refresh("orders") == known
    loop.run(nameserver.stop())
    assert cache.refresh("orders") == cache.route("orders") == known
    with pytest.raises(Unavailable):
        cache.route("other")


def test_a_watch_that_has_ended_leaves_nothing(start_nameserver: StartNameServer) -> None:
    nameserver = start_nameserver()
    with rpc.open_channel(nameserver.address) as channel:
        stub = nameserver_pb2_grpc.NameServerStub(channel)
        for _ in range(3):
            list(stub.WatchRoutes(iter([nameserver_pb2.WatchRoutesRequest(topics=["orders"])])))
    wait_until(lambda: not nameserver._service._watches)


# ---- Name servers that go --------------------------------------------------------------------------


def test_a_restarted_name_server_is_not_mistaken_for_an_empty_one(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    first = start_nameserver()
    brokers = [start_broker(first.address, name=name) for name in ("broker-a", "broker-b")]
    cache = open_cache(first.address)
    told: list[list[str]] = []
    full = cache.route("orders")
    wait_until(lambda: "orders" in cache._versions, what="the first event of the watch")
    cache.on_change(lambda route: told.append(brokers_of(route)))

    loop.run(first.stop())
    wait_until(lambda: not any(broker.registration.connected for broker in brokers))
    start_nameserver(first.address, grace_s=1.5)

    # A client that knows nothing is asked to wait, and finds the topic as soon as a broker is back.
    assert brokers_of(open_cache(first.address).route("orders"))[:1]
    wait_until(lambda: all(broker.connected_to(first.address) for broker in brokers))
    brokers[0].carry("orders", "new")
    assert cache.route("new").queues
    wait_until(lambda: cache._versions["orders"] >= 2, what="the watch of the new name server")
    assert cache.route("orders") == full
    assert told == [["broker-a"]], "the new topic, and no partial route of the old one"


def test_the_grace_ends(start_nameserver: StartNameServer, open_cache: OpenCache) -> None:
    nameserver = start_nameserver(grace_s=0.5)
    with pytest.raises(SystemBusy, match="has just started") as raised:
        open_cache(nameserver.address, timeout_s=0.1).route("orders")
    assert raised.value.retry_after_s > 0
    with pytest.raises(TopicNotFound):
        open_cache(nameserver.address).route("orders")


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
        assert brokers_of(cache.route(broker.request.topics[1].topic)) == ["broker-a"]
        start_nameserver(stopped.address)
        wait_until(lambda: broker.connected_to(one.address, two.address))


def test_the_watch_moves_on_to_the_other_name_server(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    servers = {server.address: server for server in (start_nameserver(), start_nameserver())}
    stays, leaves = (start_broker(*servers, name=name) for name in ("broker-a", "broker-b"))
    wait_until(lambda: stays.connected_to(*servers) and leaves.connected_to(*servers))
    cache = open_cache(*servers)
    assert brokers_of(cache.route("orders")) == ["broker-a", "broker-b"]
    loop.run(servers[cache._nameservers.preferred()].stop())
    wait_until(lambda: len(leaves.registration.connected) == 1)
    leaves.carry()
    wait_until(
        lambda: brokers_of(cache.route("orders")) == ["broker-a"]
    )  # answered from memory: only the watch changes it


def test_a_lost_name_server_is_logged_once_and_once_when_it_is_back(
    loop: LoopThread, start_nameserver: StartNameServer, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    with caplog.at_level(logging.INFO, "minimq_broker.registration"):
        caplog.clear()
        loop.run(nameserver.stop())
        wait_until(lambda: not broker.registration.connected)
        lost = time.monotonic()
        wait_until(lambda: time.monotonic() > lost + 0.5)  # several tries
        start_nameserver(nameserver.address)
        wait_until(lambda: broker.connected_to(nameserver.address))
    said = [record.getMessage().split(" nameserver=")[0] for record in caplog.records if "registration" in record.name]
    assert said == ["not registered, trying again", "registered"]


def test_a_name_server_that_hangs_is_given_up_and_does_not_delay_the_stop(
    loop: LoopThread, cleanup: contextlib.ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = FakeBroker(loop, f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
        cleanup.callback(broker.stop)
        wait_until(lambda: "no answer within 0.2 s" in caplog.text)
        started = time.monotonic()
        broker.stop()
        broker.stop()
        assert time.monotonic() - started < 2


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
        cache = open_cache(hanging, nameserver.address, timeout_s=1)
        assert cache.route("orders").queues
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+ does not answer"):
            open_cache(hanging, timeout_s=0.3).route("orders")


@pytest.mark.fault
def test_garbage_does_no_harm(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    broker = start_broker(nameserver.address)
    host, _, port = nameserver.address.rpartition(":")
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(65536),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(999),
        b"",
    ):
        with socket.create_connection((host, int(port))) as connection, contextlib.suppress(OSError):
            connection.sendall(garbage)
    with rpc.open_channel(nameserver.address) as channel:
        for method in ("Register", "GetRoute", "WatchRoutes", "NoSuchMethod"):
            call: Any = channel.stream_stream(f"/minimq.v1.NameServer/{method}")
            with pytest.raises(grpc.RpcError):
                list(call(iter([b"\xff" * 99]), timeout=5))
    assert open_cache(nameserver.address).route("orders").queues
    assert broker.connected_to(nameserver.address)


# ---- The end ---------------------------------------------------------------------------------------


def test_a_closed_cache_leaves_no_thread(
    start_nameserver: StartNameServer, start_broker: StartBroker, open_cache: OpenCache
) -> None:
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    before = set(threading.enumerate())
    caches = [open_cache(nameserver.address, NOBODY) for _ in range(5)]
    for cache in caches:
        cache.route("orders")
        cache.close()
        cache.close()
        for call in (cache.cluster, cache.topics, lambda cache=cache: cache.route("orders")):
            with pytest.raises(Closed):
                call()
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
            thread.join(5)
    assert raised


# ---- The process -----------------------------------------------------------------------------------


@contextlib.contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    with started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()


def nameserver_process(*args: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return process(sys.executable, "-m", "minimq_nameserver", *args)


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_says_when_it_serves_and_ends_cleanly(number: signal.Signals, open_cache: OpenCache) -> None:
    with nameserver_process("--listen", "127.0.0.1:0", "--log-level", "warning") as nameserver:
        assert nameserver.stdout is not None
        match = re.fullmatch(r"ready nameserver (127\.0\.0\.1:\d+)\n", nameserver.stdout.readline())
        assert match
        cache = open_cache(match[1])
        assert cache.cluster() == []
        nameserver.send_signal(number)
        rest, errors = nameserver.communicate(timeout=10)
        assert (nameserver.returncode, rest, errors) == (0, "", "")


@pytest.mark.system
@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["--listen", "nowhere"], 2, "'nowhere' is not an address"),
        (["--listen", "192.0.2.1:0"], 1, "error: cannot listen at 192.0.2.1:0: Cannot assign requested address\n"),
        (["--listen", "no.such.host.invalid:1"], 1, "error: cannot listen at no.such.host.invalid:1: "),
    ],
)
def test_what_cannot_start_says_why(args: list[str], status: int, said: str) -> None:
    with nameserver_process(*args) as nameserver:
        output, errors = nameserver.communicate(timeout=20)
        assert (nameserver.returncode, output) == (status, "")
        assert said in errors


@pytest.mark.system
def test_a_port_in_use_is_one_clear_sentence(start_nameserver: StartNameServer) -> None:
    address = start_nameserver().address
    with nameserver_process("--listen", address) as nameserver:
        output, errors = nameserver.communicate(timeout=20)
        assert (nameserver.returncode, output) == (1, "")
        reason = "the port is in use; stop the process that has it, or choose another port"
        assert errors == f"error: cannot listen at {address}: {reason}\n"
