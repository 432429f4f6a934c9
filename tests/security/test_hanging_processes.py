"""Servers with TLS close the connections of processes that are stopped, in the time that the limits say."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq.local.server_process import ServerProcess
from minimq_common.wire import rpc
from support.command import COMMAND
from support.process import process
from support.waiting import wait_until

TIMEOUT_S = 60.0
#: docs/limits.md: time without any sign of life from a peer.
_OPTIONS = dict(rpc.SERVER_OPTIONS)
SILENCE_S = (_OPTIONS["grpc.keepalive_time_ms"] + _OPTIONS["grpc.http2.ping_timeout_ms"]) / 1_000
#: A ping may have been answered just before; a loaded machine takes some time.
LATE_S = 20.0
CLIENTS = 5
TOPIC = "orders"
ESTABLISHED = "01"

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A name server, a broker and its slave."""
    with LocalCluster(brokers=1, slaves=1, data_dir=tmp_path_factory.mktemp("pair"), secure=True) as cluster:
        with Admin(credentials=cluster.credentials) as admin:
            admin.create_topic(TOPIC, queues=1)
        yield cluster


def connections(server: ServerProcess) -> set[str]:
    """Return the connections that the system has for a server at the port at which it listens, by their other ends."""
    port = f"{int(server.address.rpartition(':')[2]):04X}"
    own = set()
    for file in Path(f"/proc/{server.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since
            own.add(str(file.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):  # a server for both has those of both in the second one
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, far, state, *_, inode = line.split()[:10]
            if local.endswith(f":{port}") and state == ESTABLISHED and f"socket:[{inode}]" in own:
                found.add(far)
    return found


def wait_until_closed(begin: Callable[[], object], server: ServerProcess, lost: set[str]) -> float:
    """Return how long a server has taken to close connections, after what had their other ends hang."""
    begin()
    began = time.monotonic()
    wait_until(lambda: not connections(server) & lost, SILENCE_S + LATE_S, what=f"{server.name} closes {lost}")
    return time.monotonic() - began


def send(cluster: LocalCluster) -> None:
    with Producer(credentials=cluster.credentials, send_timeout_s=TIMEOUT_S) as producer:
        producer.send(Message(TOPIC, b"x"))


def test_connections_of_clients_that_are_stopped_are_closed(pair: LocalCluster) -> None:
    servers = (pair.nameservers[0], pair.brokers[0])
    at_rest = {server: connections(server) for server in servers}
    consume = ("--credentials", str(pair.credentials), "consume", TOPIC, "--group")
    with ExitStack() as opened:
        clients = [opened.enter_context(process(*COMMAND, *consume, f"g{number}")) for number in range(CLIENTS)]
        with Admin(credentials=pair.credentials) as admin:
            for number in range(CLIENTS):
                wait_until(
                    lambda number=number: (
                        f"g{number}" in admin.list_groups()  # type: ignore[misc]
                        and admin.describe_group(f"g{number}").members
                    ),
                    TIMEOUT_S,
                    what="all consume",
                )
            own = {server: connections(server) for server in servers}
        wait_until(lambda: all(len(connections(each) - at_rest[each]) >= CLIENTS for each in servers), TIMEOUT_S)
        lost = {server: (own[server] & connections(server)) - at_rest[server] for server in servers}
        for client in clients:
            os.killpg(client.pid, signal.SIGSTOP)
        took = [wait_until_closed(lambda: None, server, lost[server]) for server in servers]
        print(f"{CLIENTS} clients: closed after {sum(took):.1f} s")
        send(pair)


def test_connections_of_a_slave_that_is_stopped_are_closed_and_it_comes_back(pair: LocalCluster) -> None:
    master, slave = pair.brokers
    [nameserver] = pair.nameservers
    with ExitStack() as opened:
        opened.callback(slave.resume)
        before = connections(master)
        assert before
        took = wait_until_closed(slave.pause, master, before)
        print(f"slave: closed after {took:.1f} s")
        send(pair)  # the slave is in sync no longer
    wait_until(lambda: (found := master.replication()) is not None and found.in_sync == (0, 1), TIMEOUT_S)
    assert nameserver.running
