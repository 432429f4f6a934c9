"""`minimq console` as a process of its own."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys

import pytest

from minimq.local.local_cluster import LocalCluster
from support.command import COMMAND, Minimq, environment
from support.console_client import ConsoleClient
from support.process import process

#: Runs the command as if the extra were not installed.
WITHOUT_THE_EXTRA = """
import sys
sys.modules["starlette"] = None
from minimq.__main__ import main
main()
"""


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_though_somebody_watches(cluster: LocalCluster, number: signal.Signals) -> None:
    with process(*COMMAND, "-n", cluster.nameserver, "console", "--port", "0", "--interval", "0.5") as running:
        assert running.stdout is not None
        found = re.fullmatch(r"console of (\S+): (http://127\.0\.0\.1:\d+)\n", running.stdout.readline())
        assert found is not None
        assert found[1] == cluster.nameserver
        console = ConsoleClient(found[2])
        assert [row["broker"] for row in console.json("/")["replicas"]] == ["broker-a", "broker-b"]
        with console.events("/") as events:
            next(events)
            running.send_signal(number)
            assert running.wait(30) == 0
        assert running.stderr is not None
        assert running.stderr.read() == ""


def test_a_port_that_is_taken_is_named_with_the_remedy(cluster: LocalCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = Minimq(cluster.nameserver)("console", "--port", port, status=1)
    assert f"127.0.0.1:{port}" in said
    assert "--port" in said


def test_without_the_extra_it_names_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_EXTRA, "console"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'minimq[console]'" in done.stderr
    assert "starlette" in done.stderr


@pytest.mark.system
def test_a_local_cluster_has_a_console_beside_it() -> None:
    command = (*COMMAND, "local", "--brokers", "1", "--port", "0", "--console", "--console-port", "0")
    with process(*command) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("console "):
                break
        console = ConsoleClient(line.split()[1])
        [row] = console.json("/")["replicas"]
        assert (row["broker"], row["state"]) == ("broker-a", "running")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
