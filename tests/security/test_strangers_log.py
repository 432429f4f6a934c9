"""Strangers and failing callers leave few lines in the log of a server, all of them in its format."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from minimq import LocalCluster
from minimq_common.security.certificates import Trust
from minimq_common.security.user_key import ID_BYTES, SECRET_BYTES, new_key
from minimq_common.wire import rpc
from support.cases import for_each
from support.secure_scraping import trust_of

TIMEOUT_S = 60.0
ATTEMPTS = 50
MAX_LINES = 10

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def logging_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = {"log_format": "json", "metrics": "127.0.0.1:0"}
    folder = tmp_path_factory.mktemp("log")
    with LocalCluster(
        brokers=1, data_dir=folder, secure=True, broker_options=options, nameserver_options=options
    ) as cluster:
        yield cluster


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def in_tls(address: str) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(connected(address))


def ended_with(stranger: socket.socket, data: bytes) -> None:
    with closing(stranger), suppress(OSError):
        stranger.sendall(data)
        stranger.recv(1)


def broken_record(address: str) -> None:
    ended_with(socket.socket(fileno=in_tls(address).detach()), b"\x17\x03\x03\x00\x20" + b"A" * 32)


def call(address: str, trust: Trust, make: Callable[[Any], object]) -> None:
    with rpc.open_channel(address, trust) as channel, suppress(grpc.RpcError):
        make(channel)


def check_of(service: str) -> Callable[[Any], object]:
    def check(channel: Any) -> object:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)

    return check


def users_call(channel: Any) -> None:
    for path in ("/minimq.v1.NameServer/GetRoutes", "/minimq.v1.Broker/Find"):
        with suppress(grpc.RpcError):
            channel.unary_unary(path)(b"", timeout=TIMEOUT_S)


def garbled(channel: Any) -> object:
    return channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff" * 100, timeout=TIMEOUT_S)


def unknown(channel: Any) -> object:
    return channel.unary_unary("/no.such.Service/Call")(b"", timeout=TIMEOUT_S)


#: What a stranger may do, with an address and the authority of the cluster.
STRANGERS: dict[str, Callable[[str, Trust], None]] = {
    "a broken TLS record": lambda address, _: broken_record(address),
    "text in place of TLS": lambda address, _: ended_with(connected(address), b"GET / HTTP/1.1\r\n\r\n"),
    "a broken TLS hello": lambda address, _: ended_with(connected(address), b"\x16\x03\x01" + b"\xff" * 300),
    "text in place of HTTP/2": lambda address, _: ended_with(in_tls(address), b"GET / HTTP/1.1\r\n\r\n"),
    "bytes that are not frames": lambda address, _: ended_with(
        in_tls(address), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 5_000
    ),
    "a call without a key": lambda address, trust: call(address, trust, users_call),
    "an unknown key": lambda address, trust: call(
        address, Trust(trust.roots, None, new_key(bytes(ID_BYTES + SECRET_BYTES))), users_call
    ),
    "an unknown method": lambda address, trust: call(address, trust, unknown),
    "an unknown service": lambda address, trust: call(address, trust, check_of("no.such.Service")),
    "a request that cannot be decoded": lambda address, trust: call(address, trust, garbled),
}


@for_each("kind", STRANGERS)
def test_a_stranger_leaves_few_lines_and_all_are_json(logging_cluster: LocalCluster, kind: str) -> None:
    trust = Trust(trust_of(logging_cluster.credentials).roots, None, None)
    for server in (logging_cluster.nameservers[0], logging_cluster.brokers[0]):
        before = Path(server.log_path).stat().st_size
        for _ in range(ATTEMPTS):
            STRANGERS[kind](server.address, trust)
        call(server.address, trust, check_of(""))  # the server has handled the attempts before it
        added = Path(server.log_path).read_bytes()[before:].decode().splitlines()
        assert len(added) <= MAX_LINES, added[-3:]
        for line in added:
            json.loads(line)
