"""Ctrl-C that a program catches and goes on with: whatever it interrupts, no message is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import support
from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq.consuming.pull_consumer import BasePullConsumer
from support.chance import SEED
from support.reading import read_all
from support.waiting import wait_until

PROGRAM = Path(support.__file__).with_name("interrupted_program.py")
CLOSER = PROGRAM.with_name("interrupted_close.py")
WORKER = PROGRAM.with_name("interrupted_worker.py")
INTERRUPTS = 2000
WORKED = 400
TIMEOUT_S = 60.0


needs_sound_locks = pytest.mark.skipif(
    sys.version_info[:2] == (3, 14),
    reason="a `with` that is interrupted may leave its lock taken: cpython issue 148874",
)


@pytest.mark.fault
@needs_sound_locks
def test_interrupted_sends_and_polls_lose_nothing(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    """An interrupted send may be stored or not; a message of an interrupted poll comes with a later one."""
    group = new_name()
    arguments = [cluster.nameserver, topic, group, str(INTERRUPTS), str(SEED)]
    done = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, timeout=110, check=False)
    assert done.returncode == 0, (SEED, done.stderr.decode())
    assert b"never awaited" not in done.stderr
    found = json.loads(done.stdout)
    stored = [int(message.body) for message in read_all(cluster.nameserver, topic)]
    assert set(found["sent"]) <= set(stored), SEED
    assert len(stored) == len(set(stored)), SEED
    assert set(found["read"]) == set(stored), SEED
    assert min(found["interrupted_sends"], found["interrupted_polls"]) >= INTERRUPTS
    assert found["held"] == [0, 0], SEED
    assert admin.describe_group(group).lag == 0


def test_a_loop_that_is_interrupted_before_its_first_message_finishes_none(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    with Producer(cluster.nameserver) as producer:
        producer.send_many(
            [Message(topic, b"%d" % number) for number in range(100)], queue=MessageQueue(topic, "broker-a", 0)
        )

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is BasePullConsumer._one_by_one.__code__:
            sys.settrace(None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), PullConsumer(cluster.nameserver, group=group) as consumer:  # noqa: PT012
        consumer.subscribe(topic)
        sys.settrace(interrupt)
        for _ in consumer:
            pass
    with PullConsumer(cluster.nameserver, group=group) as consumer:
        consumer.subscribe(topic)
        found: list[bytes] = []

        def has_all() -> bool:
            found.extend(each.body for each in consumer.poll(0.1))
            return len(found) == 100

        wait_until(has_all, TIMEOUT_S)


@needs_sound_locks
def test_messages_taken_one_by_one_are_all_done_though_takes_are_interrupted(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    group = new_name()
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"%d" % number) for number in range(WORKED)])
    arguments = [cluster.nameserver, topic, group, *map(str, (WORKED, INTERRUPTS, SEED))]
    done = subprocess.run([sys.executable, str(WORKER), *arguments], capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"never" not in done.stderr, done.stderr.decode()  # awaited, retrieved
    found = json.loads(done.stdout)
    assert set(found["received"]) == set(range(WORKED))
    assert found["interrupted"] > INTERRUPTS // 10
    assert admin.describe_group(group).lag == 0


@pytest.mark.parametrize("mode", ["queues", "work_queue"])
def test_closing_reports_that_it_waits_and_a_second_interrupt_ends_the_wait(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str], mode: str
) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send_many(Message(topic, b"%d" % number) for number in range(10))
    arguments = [sys.executable, str(CLOSER), cluster.nameserver, topic, new_name(), mode]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as closing:
        assert closing.stdout is not None
        assert closing.stderr is not None
        assert closing.stdout.readline() == "listens\n"
        closing.send_signal(signal.SIGINT)
        assert "closes, and waits up to 29 s for the listener" in closing.stderr.readline()
        closing.send_signal(signal.SIGINT)
        told = closing.stderr.read()
        assert closing.wait(TIMEOUT_S) in (130, -signal.SIGINT)
    assert told.count("Traceback") == 1
