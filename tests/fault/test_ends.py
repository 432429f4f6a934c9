"""Programs with clients end, however the clients are closed, and whatever their servers do."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from support.process import process

PROGRAM = Path(__file__).parents[1] / "support" / "ending_program.py"
TIMEOUT_S = 100.0
WAYS = ["with", "close", "atexit", "__del__", "garbage", "exit", "SIGINT", "SIGTERM"]
WAYS += ["aio with", "aio close", "aio garbage", "aio SIGINT"]

pytestmark = pytest.mark.timeout(4 * TIMEOUT_S)


@pytest.fixture(scope="module")
def own() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as cluster:
        with Admin(cluster.nameserver) as admin:
            for topic in map(topic_of, WAYS):
                admin.create_topic(topic, queues=1)
        yield cluster


def topic_of(way: str) -> str:
    return way.replace(" ", "-")


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


def signal_of(way: str) -> signal.Signals | None:
    return signal.Signals[way.rsplit(maxsplit=1)[-1]] if "SIG" in way else None


@pytest.mark.parametrize("servers", ["alive", "gone", "hanging"])
def test_every_client_ends_without_an_error(own: LocalCluster, servers: str) -> None:
    """All programs run at once: most of their time they wait."""
    with ExitStack() as stack:
        programs = {}
        for way in WAYS:
            argument = re.sub(r"SIG\w+", "signal", way)
            command = sys.executable, str(PROGRAM), own.nameserver, argument, topic_of(way)
            programs[way] = stack.enter_context(process(*command))
        for program in programs.values():
            wait_for_line(program, "ready")
        try:
            change(own, servers)
            for way, program in programs.items():
                print(file=program.stdin, flush=True)
                if (stop := signal_of(way)) is not None:
                    wait_for_line(program, "waits")
                    program.send_signal(stop)
            ends = {way: (*program.communicate(timeout=TIMEOUT_S), program) for way, program in programs.items()}
        finally:
            restore(own)
    for way, (printed, errors, program) in ends.items():
        assert printed == "", (way, errors)
        if signal_of(way) is signal.SIGINT:
            assert errors.rstrip().endswith("KeyboardInterrupt"), (way, errors)
            assert program.returncode == -signal.SIGINT, way
        else:
            assert "Traceback" not in errors, (way, errors)
            assert "ignored" not in errors, (way, errors)
            assert program.returncode == 0, way
