"""Consumer groups: members share the queues, none is read by two, nothing is read twice or passed over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, MinimqError, Producer, PullConsumer
from minimq_common.errors import InvalidArgument, SendFailed, TopicNotFound
from support.members import Log, Member, shared_evenly
from support.reading import check_brokers
from support.waiting import wait_until

TIMEOUT_S = 40.0

Place = tuple[MessageQueue, int]


def send(producer: Producer, topic: str, count: int) -> set[Place]:
    """Send messages and return where they are."""
    receipts = producer.send_many(Message(topic, b"%d" % number) for number in range(count))
    return {(receipt.queue, receipt.queue_offset) for receipt in receipts}


def grown(log: Log, by: int) -> Callable[[], bool]:
    """Return a condition: as many messages were read since now."""
    wanted = len(log) + by
    return lambda: len(log) >= wanted


def has_all(log: Log, sent: set[Place]) -> bool:
    return not log.missing(sent)


class Load:
    """Sends in a thread of its own until the end of the `with` block."""

    def __init__(self, nameserver: str, topic: str) -> None:
        self.sent: set[Place] = set()
        self.failed = 0
        self._producer = Producer(nameserver)
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let what was begun end; then `sent` is complete. Idempotent."""
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        self._producer.close()

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            try:
                receipts = self._producer.send_many([Message(self._topic, bytes(100))] * 50)
            except (SendFailed, MinimqError):
                self.failed += 1
            else:
                self.sent |= {(receipt.queue, receipt.queue_offset) for receipt in receipts}


# ---- sharing ------------------------------------------------------------------------------------


def test_members_that_come_and_go_under_load_neither_repeat_nor_lose(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    log = Log()
    with Load(cluster.nameserver, topic) as load, ExitStack() as stack:
        first = stack.enter_context(Member(cluster.nameserver, group, topic, log))
        wait_until(lambda: len(first.queues) == 8 and len(log) > 100, TIMEOUT_S)
        for _ in range(3):
            second = Member(cluster.nameserver, group, topic, log)
            wait_until(shared_evenly(first, second, queues=8), TIMEOUT_S, what="two members share")
            third = Member(cluster.nameserver, group, topic, log)
            wait_until(shared_evenly(first, second, third, queues=8), TIMEOUT_S, what="three members share")
            wait_until(grown(log, 200), TIMEOUT_S)
            second.leave()
            third.leave()
            assert (second.error, third.error) == (None, None)
            wait_until(lambda: len(first.queues) == 8, TIMEOUT_S, what="the first member has all again")
        load.stop()
        wait_until(lambda: not log.missing(load.sent), TIMEOUT_S, what="all is read")
    assert load.failed == 0
    assert first.error is None
    assert log.repeated == {}


# ---- faults of members --------------------------------------------------------------------------

MEMBER = """
import sys
from minimq import PullConsumer
consumer = PullConsumer(sys.argv[1], group=sys.argv[2], commit_interval_s=0.05)
consumer.subscribe(sys.argv[3])
while True:
    for message in consumer.poll(0.1, max_messages=100):
        print(message.queue.broker_name, message.queue.queue_id, message.queue_offset, flush=True)
"""


@pytest.mark.fault
def test_the_queues_of_a_killed_member_go_to_the_others(cluster: LocalCluster, topic: str, group: str) -> None:
    """Only messages that the killed member had in flight are read again, and nothing is lost."""
    log = Log()
    with Load(cluster.nameserver, topic) as load, Member(cluster.nameserver, group, topic, log) as survivor:
        wait_until(lambda: len(survivor.queues) == 8, TIMEOUT_S)
        process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, cluster.nameserver, group, topic],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None
        read: set[Place] = set()
        for line in process.stdout:
            if not line.endswith("\n"):
                break  # it was killed while it wrote
            broker, queue_id, offset = line.split()
            read.add((MessageQueue(topic, broker, int(queue_id)), int(offset)))
            if len(read) > 300:
                process.send_signal(signal.SIGKILL)
        process.wait(TIMEOUT_S)
        process.stdout.close()
        wait_until(lambda: len(survivor.queues) == 8, TIMEOUT_S, what="the survivor has all queues")
        load.stop()
        wait_until(lambda: not log.missing(load.sent - read), TIMEOUT_S, what="all is read by one of them")
    assert survivor.error is None
    assert log.repeated == {}


def test_a_topic_that_does_not_exist_is_named_at_the_first_poll(cluster: LocalCluster, group: str) -> None:
    with PullConsumer(cluster.nameserver, group=group) as consumer:
        consumer.subscribe("no-such-topic")
        with pytest.raises(TopicNotFound, match="no-such-topic"):
            consumer.poll()
        with pytest.raises(InvalidArgument, match="exclude each other"):
            consumer.assign([])


# ---- faults of brokers --------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.long), "kill"])
def test_a_broker_that_goes_and_comes_back_under_load_loses_nothing(tmp_path: Path, how: str) -> None:
    """Consumers may get again what they had in flight; with two members and both brokers in turn."""
    log = Log()
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        with Load(cluster.nameserver, "t") as load, ExitStack() as stack:
            members = [
                stack.enter_context(Member(cluster.nameserver, "g", "t", log, commit_interval_s=0.2)) for _ in range(2)
            ]
            wait_until(shared_evenly(*members, queues=4), TIMEOUT_S)
            for broker in cluster.brokers:
                wait_until(grown(log, 100), TIMEOUT_S)
                getattr(broker, how)()
                wait_until(grown(log, 1), TIMEOUT_S, what="the other broker is read")
                broker.start()
            wait_until(grown(log, 100), TIMEOUT_S)
            load.stop()
            wait_until(lambda: not log.missing(load.sent), TIMEOUT_S, what="all that was acknowledged is read")
            assert [member.error for member in members] == [None, None]
    check_brokers(cluster)


def test_a_paused_queue_stays_paused_while_it_stays_with_its_member(
    cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    with PullConsumer(cluster.nameserver, group=group) as member:
        member.subscribe(topic)
        wait_until(lambda: member.poll(0.1) == [] and len(member.assignment) == 8, TIMEOUT_S)
        member.pause(member.assignment)
        with PullConsumer(cluster.nameserver, group=group) as other:
            other.subscribe(topic)
            wait_until(
                lambda: (member.poll(0.1), other.poll(0.1)) == ([], []) and len(other.assignment) == 4, TIMEOUT_S
            )
            kept, left = member.assignment, other.assignment
        wait_until(lambda: member.poll(0.1) == [] and len(member.assignment) == 8, TIMEOUT_S)
        for queue in [*kept, *left]:
            producer.send(Message(topic, b"x"), queue=queue)
        found: set[MessageQueue] = set()
        while len(found) < len(left):
            found |= {message.queue for message in member.poll(TIMEOUT_S)}
        assert found == set(left)
        assert member.poll(0.3) == []
        member.resume(kept)
        while len(found) < 8:
            found |= {message.queue for message in member.poll(TIMEOUT_S)}
