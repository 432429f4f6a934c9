"""Messages that kill the process that has them, of real processes that are started again each time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, ConsumeResult, LocalCluster, Message, MessageQueue, Producer, PushConsumer, ReceivedMessage
from minimq.features.listeners import leased_source
from minimq_proto.v1 import broker_pb2
from support.command import environment
from support.raw_member import RawMember
from support.raw_popper import RawPopper
from support.server_copies import CommandCopy
from support.waiting import wait_until

TIMEOUT_S = 60.0
MAX_DELIVERIES = 2
EARLIEST = broker_pb2.StartPosition(at=broker_pb2.START_AT_EARLIEST)
LEASED = {"max_deliveries": MAX_DELIVERIES, "retry_delays_s": [0.1], "orderly_retry_delay_s": 0.1}
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


def die_with(single: LocalCluster, topic: str, queue_id: int) -> None:
    """Let a member die that had a queue, and the broker count that."""
    with RawMember(single.brokers[0].address, f"first-{topic}") as member:
        member.join(topic, topic, start=EARLIEST)
        member.ask(topic, topic, queue_id)
        assert member.granted().delivery_count == 0
        member.die()
    join_and_leave(single, topic, queue_id)


def join_and_leave(single: LocalCluster, topic: str, queue_id: int) -> None:
    """Let a member commit a queue with which another one died where it is, and leave."""
    with RawMember(single.brokers[0].address, f"second-{topic}") as member:
        member.join(topic, topic, start=EARLIEST)
        member.ask(topic, topic, queue_id)
        granted = member.granted()
        assert granted.delivery_count == 1
        member.commit(topic, topic, queue_id, 0, granted.epoch)
        member.leave(topic)
        member.hears_before_heartbeat()


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
MANY = [*(f"a{number}" for number in range(200)), "poison", *(f"b{number}" for number in range(50))]


@pytest.mark.parametrize(
    ("bodies", "options"),
    [
        pytest.param(MIDDLE, {"threads": 1, "batch_size": 1}, id="one-thread"),
        pytest.param(FIRST, {}, id="first", marks=pytest.mark.fault),
        pytest.param(TWO, {"threads": 4, "batch_size": 1}, id="two", marks=pytest.mark.fault),
        pytest.param(MIDDLE, {"orderly": True}, id="orderly", marks=pytest.mark.fault),
        pytest.param(MIDDLE, {"aio": True, "threads": 3, "batch_size": 2}, id="aio", marks=pytest.mark.fault),
    ],
)
def test_it_becomes_a_dead_letter_of_a_leased_queue(
    single: LocalCluster, topic: str, tmp_path: Path, bodies: list[str], options: dict[str, Any]
) -> None:
    send(single.nameserver, topic, bodies)
    workers = Workers(single.nameserver, topic, tmp_path / "log", LEASED | options)
    run(workers, single.nameserver, topic, bodies)
    poisons = [body for body in bodies if body.startswith("poison")]
    # Each kills as often as it may be tried, one of them for the first time along with others.
    assert workers.crashes <= len(poisons) * MAX_DELIVERIES
    assert all(0 < workers.seen()[body] <= MAX_DELIVERIES for body in poisons)


@pytest.mark.fault
def test_it_is_found_far_behind_the_last_commit(single: LocalCluster, topic: str, tmp_path: Path) -> None:
    """Messages behind those that were in flight come in batches, of which one kills once more."""
    send(single.nameserver, topic, MANY)
    options = LEASED | {"threads": 2, "batch_size": 8}
    workers = Workers(single.nameserver, topic, tmp_path / "log", options)
    run(workers, single.nameserver, topic, MANY)
    assert workers.crashes <= MAX_DELIVERIES + 1


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
@pytest.mark.parametrize("options", [LEASED, POPPED], ids=["queues", "messages"])
def test_it_does_no_harm_to_other_members_of_the_group(
    single: LocalCluster, new_name: Callable[[], str], tmp_path: Path, options: dict[str, Any]
) -> None:
    topic = new_name()
    with Admin(single.nameserver) as admin:
        admin.create_topic(topic, queues=4)
    bodies = [*(f"a{number}" for number in range(40)), "poison", *(f"b{number}" for number in range(40))]
    send(single.nameserver, topic, bodies)
    workers = Workers(single.nameserver, topic, tmp_path / "log", options | {"threads": 2, "batch_size": 1}, count=2)
    run(workers, single.nameserver, topic, bodies)


@pytest.mark.fault
@pytest.mark.parametrize("options", [LEASED, POPPED], ids=["queues", "messages"])
def test_it_is_found_in_a_process_that_is_back_within_the_grace(
    new_name: Callable[[], str], tmp_path: Path, options: dict[str, Any]
) -> None:
    topic = new_name()
    brokers = {"session_grace_s": 3600}
    with LocalCluster(brokers=1, data_dir=tmp_path / "data", broker_options=brokers) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(topic, queues=2)
        send(cluster.nameserver, topic, MIDDLE)
        options = options | {"client_id": f"same-{topic}", "invisible_s": 3600}
        workers = Workers(cluster.nameserver, topic, tmp_path / "log", options)
        run(workers, cluster.nameserver, topic, MIDDLE)


@pytest.mark.fault
@pytest.mark.parametrize("options", [LEASED, POPPED], ids=["queues", "messages"])
def test_tries_survive_the_broker(new_name: Callable[[], str], tmp_path: Path, options: dict[str, Any]) -> None:
    topic = new_name()
    brokers = {"session_grace_s": 0.2}
    with LocalCluster(brokers=1, data_dir=tmp_path / "data", broker_options=brokers) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(topic, queues=1)
        send(cluster.nameserver, topic, FIRST)
        workers = Workers(cluster.nameserver, topic, tmp_path / "log", options | {"invisible_s": 1})
        try:
            wait_until(lambda: workers.processes[0].poll() is not None, TIMEOUT_S)
            cluster.brokers[0].restart()
            run(workers, cluster.nameserver, topic, FIRST)
        finally:
            workers.kill()


def test_a_consumer_gets_what_the_broker_believes_it_has(single: LocalCluster, topic: str) -> None:
    """The answer to a take may get lost: nobody extends these messages, and nobody may wait for that."""
    send(single.nameserver, topic, ["a"])
    seen: list[bytes] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        seen.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    with (
        RawPopper(single.brokers[0].address, topic, f"same-{topic}", topic) as former,
        PushConsumer(
            single.nameserver, group=topic, client_id=f"same-{topic}", mode="work_queue", invisible_s=1
        ) as consumer,
    ):
        assert len(former.take(invisible_s=1)) == 1
        consumer.subscribe(topic)
        consumer.start(listener)
        wait_until(lambda: seen == [b"a"], TIMEOUT_S)


def test_a_commit_that_does_not_advance_forgets_no_death(single: LocalCluster, topic: str) -> None:
    send(single.nameserver, topic, ["a"])
    die_with(single, topic, 0)
    join_and_leave(single, topic, 0)


def test_calls_that_last_and_suspects_do_not_stop_other_queues(
    single: LocalCluster, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased_source, "_SUSPECT_WAIT_S", 0.2)
    topic = new_name()
    with Admin(single.nameserver) as admin:
        admin.create_topic(topic, queues=2)
    began: list[str] = []
    may_end = {"suspect-0": threading.Event(), "long": threading.Event()}

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        [body] = [message.body.decode() for message in messages]
        began.append(body)
        if body in may_end:
            may_end[body].wait(TIMEOUT_S)
        return ConsumeResult.SUCCESS

    with (
        Producer(single.nameserver) as producer,
        PushConsumer(single.nameserver, group=topic, threads=4, batch_size=1) as consumer,
    ):

        def put(body: str, queue_id: int) -> None:
            producer.send(Message(topic, body.encode()), queue=MessageQueue(topic, "broker-a", queue_id))

        put("suspect-0", 1)
        put("suspect-1", 1)
        die_with(single, topic, 1)
        consumer.subscribe(topic)
        consumer.start(listener)
        try:
            wait_until(lambda: began == ["suspect-0"], TIMEOUT_S)
            put("long", 0)
            wait_until(lambda: "long" in began, TIMEOUT_S)
            may_end["suspect-0"].set()
            put("other", 0)
            wait_until(lambda: "other" in began, TIMEOUT_S)
            assert "suspect-1" not in began  # nothing else may be in flight
        finally:
            for event in may_end.values():
                event.set()
        wait_until(lambda: "suspect-1" in began, TIMEOUT_S)


def test_a_death_is_no_try_of_messages_that_may_not_have_been_in_flight(single: LocalCluster, topic: str) -> None:
    send(single.nameserver, topic, ["a", "b"])
    die_with(single, topic, 0)
    came: list[tuple[bytes, int]] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        came.extend((message.body, message.delivery_count) for message in messages)
        return ConsumeResult.SUCCESS if messages[0].delivery_count > 1 else ConsumeResult.RETRY_LATER

    with PushConsumer(
        single.nameserver, group=topic, batch_size=1, max_deliveries=MAX_DELIVERIES, retry_delays_s=(0.1,)
    ) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        wait_until(lambda: len(came) == 4, TIMEOUT_S)
    assert sorted(came) == [(b"a", 1), (b"a", 2), (b"b", 1), (b"b", 2)]
    assert not dead_letters(single.nameserver, topic)
