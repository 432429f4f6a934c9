"""Requests without a valid key: a server ends the call before it has received or decompressed the request."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2

from minimq import LocalCluster
from minimq_common.security.certificates import Trust
from minimq_common.wire import rpc
from support.cases import for_each
from support.crowd import PREFACE, frame
from support.protocol import METHODS, is_of_nameserver
from support.secure_scraping import trust_of

TIMEOUT_S = 60.0
HEALTH: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]
#: Of the request that is announced, and of the part of it that is sent: less than the window of a stream.
ANNOUNCED_BYTES, SENT_BYTES = 8 << 20, 10_000

_DATA, _HEADERS, _RESET, _SETTINGS = 0, 1, 3, 4
_END_STREAM, _END_HEADERS = 1, 4

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, data_dir=tmp_path_factory.mktemp("keyed"), secure=True) as cluster:
        yield cluster


def headers(path: str) -> bytes:
    """Return the headers of a call, without any compression by tables."""
    found = [
        *((":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "localhost")),
        *(("te", "trailers"), ("content-type", "application/grpc")),
    ]
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in found
    )


class HalfCaller:
    """A connection on which every request is announced and not sent to its end."""

    def __init__(self, address: str, *, uses_tls: bool) -> None:
        host, _, port = address.rpartition(":")
        self._socket: socket.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        if uses_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
            self._socket = context.wrap_socket(self._socket)
        self._received = b""
        self._socket.sendall(PREFACE + frame(_SETTINGS, 0))

    def call(self, stream: int, path: str) -> None:
        """Begin a call, and return once the server has ended it. Raises `TimeoutError` if it does not."""
        announced = b"\0" + struct.pack(">I", ANNOUNCED_BYTES) + bytes(SENT_BYTES)
        self._socket.sendall(
            frame(_HEADERS, stream, headers(path), flags=_END_HEADERS) + frame(_DATA, stream, announced)
        )
        while True:
            kind, flags, of = self._next()
            if kind == _SETTINGS and not flags:
                self._socket.sendall(frame(_SETTINGS, 0, flags=1))
            if of == stream and (kind == _RESET or (kind == _HEADERS and flags & _END_STREAM)):
                return

    def close(self) -> None:
        self._socket.close()

    def _next(self) -> tuple[int, int, int]:
        while len(self._received) < 9 or len(self._received) < 9 + int.from_bytes(self._received[:3], "big"):
            data = self._socket.recv(1 << 16)
            assert data, "the server has closed the connection"
            self._received += data
        size = int.from_bytes(self._received[:3], "big")
        head, self._received = self._received[:9], self._received[9 + size :]
        return head[3], head[4], int.from_bytes(head[5:9], "big")


def ends_half_calls(address: str, *, uses_tls: bool, called: list[MethodDescriptor]) -> None:
    caller = HalfCaller(address, uses_tls=uses_tls)
    try:
        for number, method in enumerate(called):
            caller.call(2 * number + 1, f"/{method.containing_service.full_name}/{method.name}")
    finally:
        caller.close()


@for_each("role", ["name server", "broker"])
def test_a_call_without_a_key_ends_although_its_request_has_not_arrived(keyed: LocalCluster, role: str) -> None:
    own = [each for each in METHODS if is_of_nameserver(each.containing_service) == (role == "name server")]
    called = [*own, *HEALTH.methods]
    server = keyed.nameservers[0] if role == "name server" else keyed.brokers[0]
    ends_half_calls(server.address, uses_tls=True, called=called)


def test_health_is_answered_without_the_request_where_no_keys_are_required(cluster: LocalCluster) -> None:
    called = [HEALTH.methods_by_name["Check"]]
    for server in (cluster.nameservers[0], cluster.brokers[0]):
        ends_half_calls(server.address, uses_tls=False, called=called)


@for_each("path", ["/grpc.health.v1.Health/Check", "/minimq.v1.Search/Find"])
def test_nothing_is_decompressed(keyed: LocalCluster, path: str) -> None:
    known = trust_of(keyed.credentials)
    for trust in (known, Trust(known.roots, None, None)):
        with rpc.open_channel(keyed.brokers[0].address, trust) as channel:
            call: Any = channel.unary_unary(path)
            with pytest.raises(grpc.RpcError) as raised:
                call(bytes(1 << 20), timeout=TIMEOUT_S, compression=grpc.Compression.Gzip)
        status, details = rpc.status_of(raised.value)
        assert (status, "disabled" in details) == (grpc.StatusCode.UNIMPLEMENTED, True), details
