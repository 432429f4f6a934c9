"""Bounds on one connection to a server: calls at once and metadata, by frames that no client of ours sends."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from minimq import Admin, LocalCluster
from minimq_common.wire import rpc
from minimq_nameserver.bounds import MAX_STREAMS_OF_A_CONNECTION
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc, nameserver_pb2, nameserver_pb2_grpc
from support.crowd import PREFACE, frame

TIMEOUT_S = 30.0
SETTINGS, HEADERS, RESET = 4, 1, 3
END_HEADERS = 4
#: The setting by which a server tells how many streams a connection may have.
MAX_STREAMS = 3
#: Metadata of one call; more than the 16 KB that gRPC allows.
LARGE = [(f"x-{number}", "a" * 2_000) for number in range(10)]


def field(name: bytes, value: bytes) -> bytes:
    """Return a header that is in no table."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def headers(path: bytes) -> bytes:
    fields = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"x"}
    fields |= {b"te": b"trailers", b"content-type": b"application/grpc"}
    return b"".join(field(name, value) for name, value in fields.items())


def frames(connection: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Yield the kind, the stream and the content of each frame."""
    with connection.makefile("rb") as reader:
        while head := reader.read(9):
            yield head[3], struct.unpack(">I", head[5:])[0], reader.read(int.from_bytes(head[:3], "big"))


@pytest.mark.parametrize(
    ("role", "path", "most"),
    [
        ("broker", b"/minimq.v1.Broker/Session", dict(rpc.SERVER_OPTIONS)["grpc.max_concurrent_streams"]),
        ("nameserver", b"/minimq.v1.NameServer/WatchRoutes", MAX_STREAMS_OF_A_CONNECTION),
    ],
)
def test_a_connection_has_so_many_streams_and_further_ones_are_reset(
    cluster: LocalCluster, role: str, path: bytes, most: int
) -> None:
    address = (cluster.brokers if role == "broker" else cluster.nameservers)[0].address
    host, _, port = address.rpartition(":")
    further = 5
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        numbers = range(1, 2 * (most + further), 2)
        opening = b"".join(frame(HEADERS, number, headers(path), flags=END_HEADERS) for number in numbers)
        connection.sendall(PREFACE + frame(SETTINGS, 0) + opening)
        reset: list[int] = []
        told = 0
        for kind, stream, content in frames(connection):
            if kind == SETTINGS and content:
                told = dict(struct.iter_unpack(">HI", content))[MAX_STREAMS]
            if kind == RESET:
                reset.append(stream)
            if len(reset) == further:
                break
        assert (told, reset) == (most, list(numbers[most:]))
        with Admin(cluster.nameserver, timeout_s=TIMEOUT_S) as admin:
            admin.cluster()


@pytest.mark.parametrize("role", ["broker", "nameserver"])
def test_calls_beyond_the_limit_of_a_connection_wait(cluster: LocalCluster, role: str) -> None:
    calls: dict[str, tuple[str, str, bytes]] = {
        "broker": (cluster.brokers[0].address, "Broker/GetStatus", broker_pb2.GetStatusRequest().SerializeToString()),
        "nameserver": (cluster.nameserver, "NameServer/GetRoutes", b""),
    }
    address, method, request = calls[role]
    with rpc.open_channel(address) as channel:
        call: Any = channel.unary_unary(f"/minimq.v1.{method}")
        for _ in range(3):
            pending = [call.future(request, timeout=TIMEOUT_S) for _ in range(600)]
            for each in pending:
                each.result()


def test_calls_that_come_faster_than_they_are_taken_up_are_all_answered(cluster: LocalCluster) -> None:
    broker = cluster.brokers[0]
    request = broker_pb2.GetStatusRequest().SerializeToString()
    with ExitStack() as stack:
        channels = [stack.enter_context(rpc.open_channel(broker.address)) for _ in range(16)]
        calls: list[Any] = [channel.unary_unary("/minimq.v1.Broker/GetStatus") for channel in channels]
        for call in calls:
            call(request, timeout=TIMEOUT_S)
        broker.pause()
        try:
            pending = [call.future(request, timeout=3 * TIMEOUT_S) for call in calls for _ in range(256)]
        finally:
            broker.resume()
        for each in pending:
            each.result()


def test_large_metadata_is_rejected(cluster: LocalCluster) -> None:
    calls: list[tuple[str, Any, Any]] = [
        (
            cluster.brokers[0].address,
            lambda channel: broker_pb2_grpc.BrokerStub(channel).GetStatus,
            broker_pb2.GetStatusRequest(),
        ),
        (
            cluster.nameserver,
            lambda channel: nameserver_pb2_grpc.NameServerStub(channel).GetCluster,
            nameserver_pb2.GetClusterRequest(),
        ),
    ]
    for address, method, request in calls:
        with rpc.open_channel(address) as channel:
            with pytest.raises(grpc.RpcError, match="metadata size exceeds hard limit"):
                method(channel)(request, metadata=LARGE, timeout=TIMEOUT_S)
            method(channel)(request, timeout=TIMEOUT_S)
