"""`minimq top` on a real terminal and a real cluster: rates, problems, and a terminal that is left as it was."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq.admin.activity import ActivityReader
from minimq_cli.top import screen
from support.command import Minimq, environment
from support.waiting import wait_until

TIMEOUT_S = 60.0
COMMAND = (sys.executable, "-m", "minimq")
LEFT_SCREEN = b"\x1b[?1049l"


class Terminal:
    """A pseudo-terminal in which a command runs."""

    def __init__(self, command: tuple[str, ...], columns: int, lines: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.former = termios.tcgetattr(slave)
        self._slave = slave
        variables = environment(TERM="xterm-256color", PYTHONUNBUFFERED="1")
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=variables, start_new_session=True
        )
        self.written = bytearray()
        self._from = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self.written += os.read(self._master, 65_536)
            except OSError:
                return

    def wait_for(self, text: str) -> None:
        """Wait until a text is written since the last text that was waited for."""
        try:
            wait_until(lambda: text.encode() in self.written[self._from :], TIMEOUT_S, what=f"{text!r} is shown")
        except AssertionError:
            print(
                f"exit status {self.process.poll()}, shown at last: {self.written[-10_000:].decode(errors='replace')}"
            )
            raise
        self._from = len(self.written)

    def end(self) -> int:
        """Wait for the end; the terminal is as it was."""
        status = self.process.wait(TIMEOUT_S)
        assert termios.tcgetattr(self._slave) == self.former
        wait_until(lambda: self.written.rfind(LEFT_SCREEN) > 0, TIMEOUT_S)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIMEOUT_S)
        os.close(self._slave)
        os.close(self._master)


@contextmanager
def terminal(nameserver: str, columns: int = 120, lines: int = 40) -> Iterator[Terminal]:
    opened = Terminal((*COMMAND, "-s", nameserver, "top", "--interval", "0.2"), columns, lines)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
            admin.create_topic("flights", queues=2)
            admin.create_topic("gates", queues=1)
            producer.send_many(Message("flights", b"%d" % number) for number in range(100))
            with PullConsumer(cluster.nameserver, group="boards", start="earliest") as consumer:
                consumer.subscribe("flights")
                consumer.poll(TIMEOUT_S)
                wait_until(lambda: len(admin.committed_offsets("boards")) == 4, what="it begins at both brokers")
        yield cluster


def test_rates_are_those_of_what_was_sent(own: LocalCluster) -> None:
    now = 100.0
    with Admin(own.nameserver) as admin, Producer(own.nameserver) as producer:
        reader = ActivityReader(admin, lambda: now)
        first = reader.read()
        assert {each.in_per_s for each in first.brokers} == {each.in_per_s for each in first.topics} == {None}
        producer.send_many(Message("gates", b"x") for _ in range(500))
        now += 10.0
        second = reader.read()
    assert [(each.topic, each.messages, each.in_per_s) for each in second.topics] == [
        ("gates", 500, 50.0),
        ("flights", 100, 0.0),
    ]
    assert sum(each.in_per_s or 0.0 for each in second.brokers) == 50.0
    [group] = second.groups
    assert (group.group.group, group.out_per_s) == ("boards", 0.0)
    assert [problem.kind for problem in second.problems if problem.group == "boards"] == ["no_members"]


def test_the_screen_is_filled(own: LocalCluster) -> None:
    with Admin(own.nameserver) as admin:
        for number in range(30):
            admin.create_topic(f"many-{number:02d}", queues=1)
        reader = ActivityReader(admin)
        wait_until(lambda: len(reader.read().topics) == 32, TIMEOUT_S)
        activity = reader.read()
    console = Console(width=80, height=24)
    shown = console.render_lines(screen("", activity, "", 24))
    lines = ["".join(part.text for part in line).rstrip() for line in shown]
    assert 22 <= len(lines) <= 24  # one group needs few rows, so that there are more topics
    assert sum(line.startswith("many-") for line in lines) >= 9
    assert any(line.startswith("boards") for line in lines)


def test_scripts_get_a_line_of_json(own: LocalCluster) -> None:
    minimq = Minimq(own.nameserver)
    [line] = minimq("top", "--once", "--interval", "0.2", "--output", "json").splitlines()
    shown = json.loads(line)
    assert [each["broker"] for each in shown["brokers"]] == ["broker-a", "broker-b"]
    assert shown["groups"][0]["lag"] >= 0
    assert {each["topic"]: each["messages"] for each in shown["topics"]} == {"flights": 100, "gates": 0}
    assert "flights" in minimq("top", "--once", "--interval", "0.2")


@pytest.mark.fault
def test_a_broker_that_goes_and_comes_back_is_seen(own: LocalCluster) -> None:
    with terminal(own.nameserver) as shown:
        shown.wait_for("flights")
        own.brokers[1].kill()
        shown.wait_for("broker broker-b")
        own.brokers[1].start()
        shown.wait_for("boards: no members")
        os.killpg(shown.process.pid, signal.SIGINT)
        assert shown.end() == 130


@pytest.mark.fault
def test_a_cluster_that_is_offline_is_told_of_until_it_is_back(own: LocalCluster) -> None:
    [nameserver] = own.nameservers
    with terminal(own.nameserver, columns=60, lines=15) as shown:
        shown.wait_for("flights")
        nameserver.kill()
        shown.wait_for("name server")
        nameserver.start()
        shown.wait_for("brokers 2")
        os.killpg(shown.process.pid, signal.SIGINT)
        assert shown.end() == 130
