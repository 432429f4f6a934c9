"""Thousands of connections that get no further than a handshake: memory is bounded, others are served."""

from __future__ import annotations

import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from support.crowd import CONNECTED, HALF_HELLO, UNFINISHED, crowd, resident_mib, wait_until_closed
from support.secure_scraping import client_context, trust_of

TIMEOUT_S = 60.0
MAX_MIB = 512


def admitted(cluster: LocalCluster, folder: Path) -> ssl.SSLContext:
    """Return the TLS of those whose handshake succeeds, with the certificate that this cluster wants."""
    context = client_context(trust_of(cluster.credentials), folder)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    return context


@pytest.mark.parametrize(
    ("is_secure", "part"),
    [
        pytest.param(False, 1_000, marks=pytest.mark.long, id="plain"),
        pytest.param(True, 250, id="tls"),
        pytest.param(True, 1_000, marks=pytest.mark.long, id="tls, 2,000 connections"),
    ],
)
def test_a_crowd_of_strangers_takes_little_memory_and_those_without_a_handshake_are_closed(
    is_secure: bool, part: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Half of the connections to each server do not complete their handshakes, of TLS or HTTP/2; the others do."""
    cluster: LocalCluster = request.getfixturevalue("secure" if is_secure else "cluster")
    credentials = cluster.credentials if is_secure else None
    topic = f"crowd-{'tls' if is_secure else 'plain'}-{part}"
    servers = [cluster.nameservers[0], cluster.brokers[0]]
    unfinished = [b"", HALF_HELLO] if is_secure else list(UNFINISHED.values())
    context = admitted(cluster, tmp_path) if is_secure else None
    with ExitStack() as connections:
        waiting, connected = [], []
        for server in servers:
            waiting += connections.enter_context(crowd(server.address, unfinished, part))[: len(unfinished)]
            connected += connections.enter_context(crowd(server.address, list(CONNECTED.values()), part, context))
        with Admin(cluster.nameserver, timeout_s=TIMEOUT_S, credentials=credentials) as admin:
            admin.create_topic(topic, queues=1)
        with Producer(cluster.nameserver, send_timeout_s=TIMEOUT_S, credentials=credentials) as producer:
            for _ in range(20):
                producer.send(Message(topic, b"x"))
        for server in servers:
            assert server.pid is not None
            taken = resident_mib(server.pid)
            print(f"{server.name}: {taken:.0f} MiB with {2 * part} connections")
            assert taken < MAX_MIB
        for connection in waiting:
            wait_until_closed(connection, TIMEOUT_S)
        for connection in connected:
            assert connection.recv(1)  # each has come as far as HTTP/2, and is answered its settings
