"""Listeners that hold the GIL for longer than their messages, or their queues, are theirs: work is done once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from minimq import Admin, LocalCluster, Message, Producer, WorkQueueConsumer
from support.waiting import wait_until

PROGRAM = Path(__file__).parent.parent / "support" / "gil_holder.py"
PATIENCE_S = 60.0

pytestmark = pytest.mark.slow


class Holder:
    """A process of a group, with a listener that holds the GIL on demand."""

    def __init__(self, nameserver: str, group: str, topics: Sequence[str], log: Path, options: dict[str, Any]) -> None:
        self._log = log
        log.touch()
        reading, self._writing = os.pipe()
        arguments = [nameserver, group, ",".join(topics), str(log), str(reading), json.dumps(options)]
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[reading],
        )
        os.close(reading)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._writing)  # what is held is released
        self._process.kill()
        self._process.communicate()

    def go_on(self) -> None:
        """Have the listener hold the GIL, or return."""
        os.write(self._writing, b".")

    def wait_for(self, line: str) -> None:
        """Wait until the listener has come so far."""
        wait_until(lambda: line in self._log.read_text().splitlines(), PATIENCE_S)

    def end(self) -> tuple[list[str], str]:
        """Close the consumer; return what its listener was called with, and the log."""
        _, log = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0
        lines = self._log.read_text().splitlines()
        return sorted(line.removeprefix("began ") for line in lines if line.startswith("began ")), log.decode()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, data_dir=tmp_path_factory.mktemp("held")) as made:
        yield made


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster whose broker soon takes a silent consumer for dead."""
    options = {"session_timeout_s": 4}
    with LocalCluster(brokers=1, data_dir=tmp_path_factory.mktemp("impatient"), broker_options=options) as made:
        yield made


@pytest.fixture
def pass_time(cluster: LocalCluster, new_name: Callable[[], str]) -> Callable[[int], None]:
    """Return a function that waits for so many seconds, by the clock by which a broker redelivers messages."""
    name = new_name()
    send(cluster, name, "tick")

    def pass_time(seconds: int) -> None:
        with WorkQueueConsumer(cluster.nameserver, group=name, invisible_s=seconds) as consumer:
            consumer.subscribe(name)
            wait_until(lambda: consumer.receive(1), PATIENCE_S)
            wait_until(lambda: consumer.receive(1), PATIENCE_S)

    return pass_time


def send(cluster: LocalCluster, topic: str, *bodies: str) -> None:
    with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
        admin.create_topic(topic, queues=1, if_not_exists=True)
        for body in bodies:
            producer.send(Message(topic, body.encode()))


def wait_until_settled(cluster: LocalCluster, group: str, topic: str) -> None:
    with Admin(cluster.nameserver) as admin:

        def lag() -> int:
            return sum(item.lag for item in admin.describe_group(group).queues if item.queue.topic == topic)

        wait_until(lambda: lag() == 0, PATIENCE_S)


def test_messages_of_a_process_that_stands_still_are_not_given_to_another_one_that_does(
    cluster: LocalCluster, new_name: Callable[[], str], pass_time: Callable[[int], None], tmp_path: Path
) -> None:
    both, second_only = new_name(), new_name()
    options: dict[str, Any] = {"mode": "work_queue"}
    send(cluster, both, "hold-1")
    send(cluster, second_only, "hold-2")
    with ExitStack() as stack:
        first = Holder(cluster.nameserver, both, [both], tmp_path / "1", options | {"invisible_s": 4})
        stack.enter_context(first)
        first.wait_for("began hold-1 1")
        # Its own message does not expire, so nothing but the wait tells that it stands still.
        second = Holder(cluster.nameserver, both, [both, second_only], tmp_path / "2", options | {"invisible_s": 60})
        stack.enter_context(second)
        second.wait_for("began hold-2 1")
        pass_time(1)  # its next take reaches the broker
        second.go_on()
        second.wait_for("holds hold-2")
        first.go_on()
        first.wait_for("holds hold-1")

        pass_time(5)
        first.go_on()
        wait_until_settled(cluster, both, both)
        second.go_on()
        wait_until_settled(cluster, both, second_only)
        (of_first, log_of_first), (of_second, _) = first.end(), second.end()
    assert (of_first, of_second) == (["hold-1 1"], ["hold-2 1"])
    assert "raise invisible_s" in log_of_first


def test_a_process_that_stands_still_keeps_its_queues_if_nobody_else_takes_them(
    cluster: LocalCluster, new_name: Callable[[], str], pass_time: Callable[[int], None], tmp_path: Path
) -> None:
    name = new_name()
    send(cluster, name, "hold")
    options = {"heartbeat_interval_s": 1, "lease_timeout_s": 3}
    with Holder(cluster.nameserver, name, [name], tmp_path / "log", options) as holder:
        holder.wait_for("began hold 1")
        holder.go_on()
        holder.wait_for("holds hold")
        pass_time(8)
        holder.go_on()
        wait_until_settled(cluster, name, name)
        send(cluster, name, "next")
        holder.wait_for("began next 1")
        seen, log = holder.end()
    assert seen == ["hold 1", "next 1"]
    assert "raise lease_timeout_s" in log


def test_work_is_done_once_though_the_broker_took_the_process_for_dead(
    impatient: LocalCluster, new_name: Callable[[], str], pass_time: Callable[[int], None], tmp_path: Path
) -> None:
    """Nobody else has got the queue meanwhile, so what was finished under the former lease is committed."""
    name = new_name()
    send(impatient, name, "hold")
    options = {"heartbeat_interval_s": 1, "lease_timeout_s": 3}
    with Holder(impatient.nameserver, name, [name], tmp_path / "log", options) as holder:
        holder.wait_for("began hold 1")
        holder.go_on()
        holder.wait_for("holds hold")
        pass_time(8)
        holder.go_on()
        wait_until_settled(impatient, name, name)
        send(impatient, name, "next")
        holder.wait_for("began next 1")
        seen, log = holder.end()
    assert seen == ["hold 1", "next 1"]
    assert "raise lease_timeout_s, and --session-timeout" in log
