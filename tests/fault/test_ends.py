"""Programs with clients end, however the clients are closed, and whatever their servers do."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from support.process import process

PROGRAM = Path(__file__).parents[1] / "support" / "ending_program.py"
PATIENCE_S = 100.0
WAYS = ["with", "close", "atexit", "__del__", "garbage", "exit", "SIGINT", "SIGTERM"]
WAYS += ["aio with", "aio close", "aio garbage", "aio SIGINT"]

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)


@pytest.fixture(scope="module")
def own() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("orders", queues=2)
        yield cluster


def change(cluster: LocalCluster, servers: str) -> None:
    for server in (*cluster.brokers, *cluster.nameservers):
        if servers == "gone":
            server.kill()
        elif servers == "hanging":
            server.pause()


def restore(cluster: LocalCluster) -> None:
    for server in (*cluster.nameservers, *cluster.brokers):
        server.resume()
        server.start()


def wait_for_line(program: subprocess.Popen[str], line: str) -> None:
    assert program.stdout is not None
    assert program.stdout.readline() == f"{line}\n"


@pytest.mark.parametrize("servers", ["alive", "gone", "hanging"])
@pytest.mark.parametrize("way", WAYS)
def test_every_client_ends_without_an_error(own: LocalCluster, way: str, servers: str) -> None:
    name = way.partition(" ")[2] or way
    stop = getattr(signal, name) if name.startswith("SIG") else None
    argument = way.replace(name, "signal") if stop else way
    with process(sys.executable, str(PROGRAM), own.nameserver, argument) as program:
        wait_for_line(program, "ready")
        try:
            change(own, servers)
            print(file=program.stdin, flush=True)
            if stop:
                wait_for_line(program, "waits")
                program.send_signal(stop)
            printed, errors = program.communicate(timeout=PATIENCE_S)
        finally:
            restore(own)
    assert printed == "", errors
    if stop is signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt"), errors
        assert program.returncode == -signal.SIGINT
    else:
        assert "Traceback" not in errors
        assert "ignored" not in errors
        assert program.returncode == 0
