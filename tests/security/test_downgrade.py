"""Attempts to get by with less than the TLS that servers want: each is rejected, and others are served."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from minimq.errors import Unavailable
from support.crowd import PREFACE, frame, wait_until_closed
from support.key_search import found_in, secrets_in
from support.scraping import metrics_address
from support.secure_scraping import check_health, client_context, trust_of

TIMEOUT_S = 60.0
SETTINGS = 4
#: A server that rejects a handshake says so, or closes the connection.
REJECTED = (ssl.SSLError, ConnectionResetError)

pytestmark = pytest.mark.system

Change = Callable[[ssl.SSLContext], object]


def only(ciphers: str) -> Change:
    def change(context: ssl.SSLContext) -> None:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(f"{ciphers}:@SECLEVEL=0")

    return change


def version_1_1(context: ssl.SSLContext) -> None:
    context.set_ciphers("ALL:@SECLEVEL=0")  # else OpenSSL offers none for it
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1


def all_ports(secure: LocalCluster) -> list[str]:
    servers = (*secure.nameservers, *secure.brokers)
    return [*(server.address for server in servers), *(metrics_address(server.log_path) for server in servers)]


@pytest.fixture(autouse=True)
def others_are_served(secure: LocalCluster) -> Iterator[None]:
    yield
    with Admin(credentials=secure.credentials, timeout_s=TIMEOUT_S) as admin:
        assert "orders" in admin.list_topics()


def shake_hands(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    host, _, port = address.rpartition(":")
    with closing(socket.create_connection((host, int(port)), TIMEOUT_S)) as connection:
        return context.wrap_socket(connection, server_hostname=host)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("change", "is_served"),
    [
        pytest.param(lambda _: None, True, id="as it should be"),
        pytest.param(only("ECDHE-ECDSA-AES128-GCM-SHA256"), True, id="TLS 1.2"),
        pytest.param(version_1_1, False, id="TLS 1.1"),
        pytest.param(only("ECDHE-ECDSA-AES128-SHA"), False, id="SHA-1"),
        pytest.param(only("ECDHE-ECDSA-AES128-SHA256:ECDHE-ECDSA-AES256-SHA384"), False, id="CBC"),
        pytest.param(only("ALL:COMPLEMENTOFALL:!ECDHE"), False, id="no forward secrecy"),
        pytest.param(only("aNULL:eNULL"), False, id="no authentication or no encryption"),
    ],
)
def test_weak_tls_is_rejected(secure: LocalCluster, tmp_path: Path, change: Change, is_served: bool) -> None:
    for address in all_ports(secure):
        context = client_context(trust_of(secure.credentials), tmp_path)
        change(context)
        if is_served:
            shake_hands(address, context).close()
        else:
            with pytest.raises(REJECTED):
                shake_hands(address, context)


@pytest.mark.parametrize("protocols", [[], ["http/1.1"], ["h2c"]], ids=["none", "other", "plain"])
def test_without_the_protocol_of_grpc_nothing_is_answered(
    secure: LocalCluster, tmp_path: Path, protocols: list[str]
) -> None:
    for server in (*secure.nameservers, *secure.brokers):
        context = client_context(trust_of(secure.credentials), tmp_path)
        if protocols:
            context.set_alpn_protocols(protocols)
        try:
            connection = shake_hands(server.address, context)
        except REJECTED:
            continue
        with connection:
            connection.settimeout(TIMEOUT_S)
            with contextlib.suppress(ConnectionError, ssl.SSLError):  # it may be closed before something is said
                connection.sendall(PREFACE + frame(SETTINGS, 0))
                assert connection.recv(1) == b""


def test_what_is_plain_is_not_answered(secure: LocalCluster) -> None:
    for address in all_ports(secure):
        host, _, port = address.rpartition(":")
        for words in (PREFACE + frame(SETTINGS, 0), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
            with closing(socket.create_connection((host, int(port)), TIMEOUT_S)) as connection:
                connection.sendall(words)
                wait_until_closed(connection, TIMEOUT_S)


def test_a_key_is_not_sent_to_who_speaks_no_tls(secure: LocalCluster) -> None:
    assert secure.credentials is not None
    secrets = secrets_in(secure.credentials.read_bytes())
    heard = bytearray()

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            with connection:
                connection.settimeout(TIMEOUT_S)
                heard.extend(connection.recv(1 << 16))
                connection.sendall(frame(SETTINGS, 0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            said = check_health(address, trust_of(secure.credentials))
            assert isinstance(said, Unavailable)
            with pytest.raises(Unavailable), Admin(address, credentials=secure.credentials, timeout_s=1.0) as admin:
                admin.cluster()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(TIMEOUT_S)
    assert heard
    assert not found_in(bytes(heard), secrets)
    assert b"authorization" not in heard
