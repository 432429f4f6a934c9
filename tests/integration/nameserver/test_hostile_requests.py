"""Requests that are too large, too many, or never come: a name server answers others meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from minimq_common.errors import InvalidArgument, MessageTooLarge, MinimqError, SystemBusy
from minimq_common.wire import rpc
from minimq_common.wire.protocol_bounds import MAX_WATCHED
from minimq_nameserver import server as server_module
from minimq_nameserver import service, watchers
from minimq_nameserver.bounds import MAX_TABLE_BYTES
from minimq_nameserver.server import NameServer
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc
from support.nameserver_client import NameServerClient
from support.starting import StartBroker, StartNameServer

CALLS = ["GetRoutes", "GetCluster", "ForgetBroker"]


@pytest.fixture
def nameserver(start_nameserver: StartNameServer, start_broker: StartBroker) -> NameServer:
    server = start_nameserver()
    start_broker(server.address)
    return server


@pytest.fixture
def channel(nameserver: NameServer) -> Iterator[grpc.Channel]:
    with rpc.open_channel(nameserver.address) as channel:
        yield channel


def failure_of(call: Any) -> MinimqError:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return rpc.from_rpc_error(raised.value, "name server")


def serves(nameserver: NameServer) -> bool:
    link = NameServerClient(nameserver.address, timeout_s=20)
    try:
        return bool(link.route("orders").queues and link.brokers())
    finally:
        link.close()


@pytest.mark.parametrize("size", [(64 << 10) + 1, MAX_TABLE_BYTES + 1])
def test_a_call_with_a_large_request_is_rejected(nameserver: NameServer, channel: grpc.Channel, size: int) -> None:
    for name in CALLS:
        call: Any = channel.unary_unary(f"/minimq.v1.NameServer/{name}")
        error = failure_of(lambda call=call: call(b"\x00" * size, timeout=60))
        assert isinstance(error, MessageTooLarge), name
    assert serves(nameserver)


def test_a_call_with_what_is_no_request_is_rejected(nameserver: NameServer, channel: grpc.Channel) -> None:
    for name in CALLS:
        call: Any = channel.unary_unary(f"/minimq.v1.NameServer/{name}")
        assert isinstance(failure_of(lambda call=call: call(b"\xff", timeout=60)), InvalidArgument), name
        stream: Any = channel.stream_unary(f"/minimq.v1.NameServer/{name}")
        assert isinstance(failure_of(lambda stream=stream: stream(iter(()), timeout=60)), InvalidArgument), name
    assert serves(nameserver)


def test_calls_whose_request_does_not_come_hold_up_nobody(nameserver: NameServer, channel: grpc.Channel) -> None:
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait(60)
        yield b""

    call: Any = channel.stream_unary("/minimq.v1.NameServer/GetRoutes")
    silent = [call.future(never(), timeout=60) for _ in range(24)]
    try:
        assert serves(nameserver)
    finally:
        over.set()
        for each in silent:
            each.cancel()


def test_streams_without_a_request_come_to_an_end(
    start_nameserver: StartNameServer, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_FIRST_REQUEST_S", 0.5)
    nameserver = start_nameserver()
    start_broker(nameserver.address)
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait(60)
        yield from ()

    with rpc.open_channel(nameserver.address) as channel:
        for name in ("Register", "WatchRoutes"):
            stream: Any = channel.stream_stream(f"/minimq.v1.NameServer/{name}")
            assert isinstance(failure_of(lambda stream=stream: next(stream(never(), timeout=20))), InvalidArgument)
        over.set()
    assert serves(nameserver)


def test_the_routes_of_too_many_topics_are_not_sent_at_once(
    nameserver: NameServer, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minimq_nameserver.answers.MAX_ANSWER_BYTES", 10)
    stub = nameserver_pb2_grpc.NameServerStub(channel)
    error = failure_of(lambda: stub.GetRoutes(nameserver_pb2.GetRoutesRequest(), timeout=20))
    assert isinstance(error, InvalidArgument)
    assert "list the names, and request the routes that you need" in error.message
    assert serves(nameserver)


def test_a_large_table_arrives_whole(nameserver: NameServer, channel: grpc.Channel, start_broker: StartBroker) -> None:
    topics = tuple(f"topic-{number:05d}" + "-with-a-long-name" * 3 for number in range(3_000))
    start_broker(nameserver.address, name="broker-b", topics=topics)
    stub = nameserver_pb2_grpc.NameServerStub(channel)
    assert list(stub.GetRoutes(nameserver_pb2.GetRoutesRequest(names_only=True)).names) == ["orders", *topics]
    answer = stub.GetRoutes(nameserver_pb2.GetRoutesRequest())
    assert [route.topic for route in answer.routes] == ["orders", *topics]
    over = threading.Event()

    def follow() -> Iterator[nameserver_pb2.WatchRoutesRequest]:
        yield nameserver_pb2.WatchRoutesRequest(topics=topics)
        over.wait(60)

    watch = stub.WatchRoutes(follow(), timeout=60)
    told = {event.route.topic: len(event.route.queues) for _, event in zip(topics, watch, strict=False)}
    assert told == dict.fromkeys(topics, 1)
    over.set()


def test_a_watch_that_goes_on_with_what_is_no_request_is_rejected_behind_the_event_on_its_way(
    nameserver: NameServer, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a rejection while a write is under way gRPC makes an error of its own, and a traceback."""
    writing, slow, write = threading.Event(), threading.Event(), rpc.write

    async def write_slowly(context: Any, message: bytes) -> None:
        writing.set()
        await asyncio.to_thread(slow.wait, 20)
        await write(context, message)

    def requests() -> Iterator[bytes]:
        yield nameserver_pb2.WatchRoutesRequest(topics=["orders"]).SerializeToString()
        writing.wait(20)
        yield b"\xff"

    monkeypatch.setattr(rpc, "write", write_slowly)
    begin: Any = channel.stream_stream("/minimq.v1.NameServer/WatchRoutes")
    watch = begin(requests(), timeout=20)
    try:
        assert writing.wait(20)
        time.sleep(0.3)  # which a mere rejection does not take
        assert watch.is_active()
    finally:
        slow.set()
    events: list[bytes] = []
    assert isinstance(failure_of(lambda: events.extend(watch)), InvalidArgument)


def test_large_lists_wait_until_those_before_them_are_taken(
    start_nameserver: StartNameServer, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_UNSENT_BYTES", 1)
    nameserver = start_nameserver()
    topics = tuple(f"topic-{number:05d}" + "-with-a-long-name" * 3 for number in range(3_000))
    start_broker(nameserver.address, topics=topics)
    request = nameserver_pb2.GetRoutesRequest(names_only=True)
    with rpc.open_channel(nameserver.address) as channel:
        stub = nameserver_pb2_grpc.NameServerStub(channel)
        calls: list[Any] = [stub.GetRoutes.future(request, timeout=60) for _ in range(16)]
        assert [len(call.result().names) for call in calls] == [len(topics)] * 16


def test_whoever_watches_too_much_is_rejected(nameserver: NameServer, channel: grpc.Channel) -> None:
    stub = nameserver_pb2_grpc.NameServerStub(channel)
    topics = [f"t{number}" for number in range(MAX_WATCHED + 1)]
    request = nameserver_pb2.WatchRoutesRequest(topics=topics)
    error = failure_of(lambda: list(stub.WatchRoutes(iter([request]), timeout=60)))
    assert isinstance(error, InvalidArgument)
    assert "20000 topics" in error.message
    assert serves(nameserver)


def test_a_watcher_without_a_place_is_told_to_come_back(
    nameserver: NameServer, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "MAX_WATCHERS", 0)
    stub = nameserver_pb2_grpc.NameServerStub(channel)
    request = nameserver_pb2.WatchRoutesRequest(topics=["orders"])
    error = failure_of(lambda: list(stub.WatchRoutes(iter([request]), timeout=60)))
    assert isinstance(error, SystemBusy)
    assert serves(nameserver)
