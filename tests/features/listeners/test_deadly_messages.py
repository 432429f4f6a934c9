"""Messages of work queues that kill the process that has them, of real processes that are started again each time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from support.command import environment
from support.server_copies import CommandCopy
from support.waiting import wait_until

TIMEOUT_S = 60.0
MAX_DELIVERIES = 2
POPPED = {"mode": "work_queue", "max_deliveries": MAX_DELIVERIES, "retry_delays_s": [0.1]}


class Workers:
    """Processes of one group, each of which is started again when it is killed."""

    def __init__(self, nameserver: str, topic: str, log: Path, options: dict[str, Any], count: int = 1) -> None:
        log.touch()
        self.log = log
        self.crashes = 0
        self._command = [
            sys.executable,
            "-m",
            "support.mortal_listener",
            nameserver,
            topic,
            str(log),
            json.dumps(options),
        ]
        self.processes = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        return CommandCopy(self._command, stdin=subprocess.PIPE, env=environment())

    def look(self) -> None:
        """Start those again that were killed."""
        for number, process in enumerate(self.processes):
            if process.poll() is not None:
                assert process.returncode == -signal.SIGKILL
                process.communicate()
                self.crashes += 1
                self.processes[number] = self._start()

    def seen(self) -> Counter[str]:
        """Return how often each body came to a listener."""
        return Counter(line.split()[0] for line in self.log.read_text().splitlines())

    def close(self) -> None:
        """Have all end in good order."""
        for process in self.processes:
            process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = {"session_grace_s": 0.2}
    with LocalCluster(brokers=1, data_dir=tmp_path_factory.mktemp("deadly"), broker_options=options) as cluster:
        yield cluster


@pytest.fixture
def topic(single: LocalCluster, new_name: Callable[[], str]) -> str:
    name = new_name()
    with Admin(single.nameserver) as admin:
        admin.create_topic(name, queues=1)
    return name


def send(nameserver: str, topic: str, bodies: Sequence[str]) -> None:
    with Producer(nameserver) as producer:
        producer.send_many([Message(topic, body.encode()) for body in bodies])


def dead_letters(nameserver: str, group: str) -> Counter[str]:
    with Admin(nameserver) as admin:
        return Counter(letter.received.body.decode() for letter in admin.dead_letters(group))


def run(workers: Workers, nameserver: str, topic: str, bodies: Sequence[str]) -> None:
    """Start workers again until all good messages were processed and all others are dead letters."""
    good = {body for body in bodies if not body.startswith("poison")}
    bad = Counter(body for body in bodies if body not in good)

    def is_over() -> bool:
        workers.look()
        return workers.seen().keys() >= good and dead_letters(nameserver, topic).total() >= bad.total()

    try:
        wait_until(is_over, TIMEOUT_S)
        workers.close()
    finally:
        workers.kill()
    assert dead_letters(nameserver, topic) == bad


MIDDLE = ["a0", "a1", "a2", "a3", "poison", "b0", "b1", "b2"]
FIRST = ["poison", "b0", "b1"]
TWO = ["a0", "poison-0", "a1", "poison-1", "b0"]


@pytest.mark.parametrize(
    ("bodies", "options"),
    [
        pytest.param(MIDDLE, POPPED | {"threads": 8}, id="threads"),
        pytest.param(TWO, POPPED | {"threads": 4, "batch_size": 4}, id="two", marks=pytest.mark.fault),
        pytest.param(MIDDLE, POPPED | {"threads": 8, "aio": True}, id="aio", marks=pytest.mark.fault),
        pytest.param(TWO, {"simple": True, "max_deliveries": MAX_DELIVERIES}, id="simple", marks=pytest.mark.fault),
    ],
)
def test_it_becomes_a_dead_letter_of_a_work_queue_and_its_neighbors_do_not(
    single: LocalCluster, topic: str, tmp_path: Path, bodies: list[str], options: dict[str, Any]
) -> None:
    send(single.nameserver, topic, bodies)
    workers = Workers(single.nameserver, topic, tmp_path / "log", options)
    run(workers, single.nameserver, topic, bodies)


@pytest.mark.fault
def test_it_does_no_harm_to_other_members_of_the_group(
    single: LocalCluster, new_name: Callable[[], str], tmp_path: Path
) -> None:
    topic = new_name()
    with Admin(single.nameserver) as admin:
        admin.create_topic(topic, queues=4)
    bodies = [*(f"a{number}" for number in range(40)), "poison", *(f"b{number}" for number in range(40))]
    send(single.nameserver, topic, bodies)
    workers = Workers(single.nameserver, topic, tmp_path / "log", POPPED | {"threads": 2}, count=2)
    run(workers, single.nameserver, topic, bodies)


@pytest.mark.fault
def test_deliveries_are_counted_across_a_restart_of_the_broker(new_name: Callable[[], str], tmp_path: Path) -> None:
    topic = new_name()
    brokers = {"session_grace_s": 0.2}
    with LocalCluster(brokers=1, data_dir=tmp_path / "data", broker_options=brokers) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(topic, queues=1)
        send(cluster.nameserver, topic, FIRST)
        workers = Workers(cluster.nameserver, topic, tmp_path / "log", POPPED | {"invisible_s": 1})
        try:
            wait_until(lambda: workers.processes[0].poll() is not None, TIMEOUT_S)
            cluster.brokers[0].restart()
            run(workers, cluster.nameserver, topic, FIRST)
        finally:
            workers.kill()
