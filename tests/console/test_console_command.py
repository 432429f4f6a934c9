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
from support.console_actions import use
from support.console_visitor import ConsoleVisitor
from support.process import process
from support.waiting import wait_until

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
    with process(*COMMAND, "-s", cluster.nameserver, "console", "--port", "0", "--interval", "0.5") as running:
        assert running.stdout is not None
        found = re.fullmatch(r"console of (\S+): (http://127\.0\.0\.1:\d+)\n", running.stdout.readline())
        assert found is not None
        assert found[1] == cluster.nameserver
        console = ConsoleVisitor(found[2])
        wait_until(lambda: {"broker-a", "broker-b"} <= set(re.findall(r"broker-[ab]", console.get("/").text)))
        with console.events("/") as events:
            next(events)
            running.send_signal(number)
            assert running.wait(30) == 0
        assert running.stderr is not None
        assert running.stderr.read() == ""


@pytest.mark.system
def test_each_action_is_a_line_of_the_command(cluster: LocalCluster, topic: str) -> None:
    command = (*COMMAND, "-s", cluster.nameserver, "console", "--port", "0", "--allow-changes")
    with process(*command) as running:
        assert running.stdout is not None
        address = running.stdout.readline().split()[-1]
        visitor = ConsoleVisitor(address)
        wait_until(lambda: visitor.get(f"/topics/{topic}").status == 200)
        use(visitor, f"/topics/{topic}/resize", queues="5")
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
        assert running.stderr is not None
        [line] = running.stderr.read().splitlines()
    assert "console: an action user='' from=127.0.0.1:" in line
    assert "action=resize-topic" in line
    assert "result=done" in line


def test_actions_beyond_this_machine_need_keys_or_consent(cluster: LocalCluster) -> None:
    said = Minimq(cluster.nameserver)("console", "--port", "0", "--host", "0.0.0.0", "--allow-changes", status=2)
    assert "--allow-anyone" in said
    assert "--console" in Minimq(cluster.nameserver)("local", "--allow-changes", status=2)


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
    command = (
        *COMMAND,
        "local",
        "--brokers",
        "1",
        "--port",
        "0",
        "--console",
        "--allow-changes",
        "--console-port",
        "0",
    )
    with process(*command) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("console "):
                break
        console = ConsoleVisitor(line.split()[1])
        wait_until(lambda: "/brokers/broker-a/pause" in console.get("/").text)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
