"""Thousands of connections by strangers who get no further than a handshake: memory is bounded, others are served."""

from __future__ import annotations

import ssl
from contextlib import ExitStack

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from support.crowd import CONNECTED, HALF_HELLO, UNFINISHED, crowd, resident_mib, wait_until_closed

PATIENCE_S = 60.0
#: Connections to each of two servers, in two parts; all of them together are 2,000 for each.
PART = 1_000
MOST_MIB = 512


def without_verification() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


@pytest.mark.parametrize(
    "is_secure", [pytest.param(False, marks=pytest.mark.long, id="plain"), pytest.param(True, id="tls")]
)
def test_a_crowd_of_strangers_takes_little_memory_and_those_without_a_handshake_are_closed(
    is_secure: bool, request: pytest.FixtureRequest
) -> None:
    cluster: LocalCluster = request.getfixturevalue("secure" if is_secure else "cluster")
    credentials = cluster.credentials if is_secure else None
    topic = "crowd-tls" if is_secure else "crowd-plain"
    servers = [cluster.nameservers[0], cluster.brokers[0]]
    unfinished = [b"", HALF_HELLO] if is_secure else list(UNFINISHED.values())
    context = without_verification() if is_secure else None

    with ExitStack() as connections:
        waiting = []
        for server in servers:
            waiting += connections.enter_context(crowd(server.address, unfinished, PART))[: len(unfinished)]
            connections.enter_context(crowd(server.address, list(CONNECTED.values()), PART, context))
        with Admin(cluster.nameserver, timeout_s=PATIENCE_S, credentials=credentials) as admin:
            admin.create_topic(topic, queues=1)
        with Producer(cluster.nameserver, send_timeout_s=PATIENCE_S, credentials=credentials) as producer:
            for _ in range(20):
                producer.send(Message(topic, b"x"))
        for server in servers:
            assert server.pid is not None
            assert resident_mib(server.pid) < MOST_MIB
        for connection in waiting:
            wait_until_closed(connection, PATIENCE_S)
