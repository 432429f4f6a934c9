"""Push consumers that take messages one by one, plain and for asyncio, at real brokers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minimq import (
    Admin,
    Cluster,
    ConsumeResult,
    LocalCluster,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    WorkQueueConsumer,
    aio,
)
from minimq.errors import GroupConflict, InvalidArgument
from support.listening import Listener
from support.waiting import wait_until

SUCCESS = ConsumeResult.SUCCESS
TIMEOUT_S = 60.0
#: Longer than the invisible duration of a job that goes on.
JOB_S, INVISIBLE_S = 11.0, 5.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = {"session_grace_s": 3.0}
    with LocalCluster(brokers=2, data_dir=tmp_path_factory.mktemp("pushed"), broker_options=options) as cluster:
        yield cluster


@pytest.fixture
def topic(pair: LocalCluster, new_name: Callable[[], str]) -> str:
    """Return a topic with two queues on each of two brokers."""
    name = new_name()
    with Admin(pair.nameserver) as admin:
        admin.create_topic(name, queues=2)
    return name


def fill(nameserver: str, topic: str, count: int) -> None:
    with Producer(nameserver) as producer:
        producer.send_many([Message(topic, b"%d" % number) for number in range(count)])


def pushing(cluster: LocalCluster | Cluster, topic: str, **options: Any) -> PushConsumer:
    nameserver = cluster if isinstance(cluster, Cluster) else cluster.nameserver
    consumer = PushConsumer(nameserver, group=topic, mode="work_queue", **options)
    consumer.subscribe(topic)
    return consumer


def lag(cluster: LocalCluster, topic: str) -> int:
    """Return how many messages the group of a topic has not settled, also before it has begun."""
    with Admin(cluster.nameserver) as admin:
        begun = {item.queue: item.lag for item in admin.describe_group(topic).queues}
        return sum(begun.get(item.queue, item.max_offset) for item in admin.describe_topic(topic).queues)


def numbers(count: int) -> set[bytes]:
    return {b"%d" % number for number in range(count)}


def test_a_job_longer_than_the_invisible_duration_is_done_once(pair: LocalCluster, topic: str) -> None:
    fill(pair.nameserver, topic, 1)
    calls: list[str] = []

    def work(messages: list[ReceivedMessage]) -> ConsumeResult:
        calls.append("plain")
        time.sleep(JOB_S)
        return SUCCESS

    async def work_here(messages: list[ReceivedMessage]) -> ConsumeResult:
        calls.append("aio")
        await asyncio.sleep(JOB_S)
        return SUCCESS

    async def main() -> None:
        async with aio.PushConsumer(
            pair.nameserver, group=topic, mode="work_queue", invisible_s=INVISIBLE_S
        ) as consumer:
            consumer.subscribe(topic)
            await consumer.start(work_here)
            await asyncio.to_thread(wait_until, lambda: lag(pair, topic) == 0, TIMEOUT_S)

    with pushing(pair, topic, invisible_s=INVISIBLE_S) as consumer:
        consumer.start(work)
        asyncio.run(main())
    assert len(calls) == 1


HANGING = """
import sys, time
from minimq import PushConsumer
nameserver, topic = sys.argv[1:]
consumer = PushConsumer(nameserver, group=topic, mode="work_queue", threads=5, invisible_s=3600)
consumer.subscribe(topic)
consumer.start(lambda messages: (print(flush=True), time.sleep(3600)))
time.sleep(3600)
"""


@pytest.mark.fault
def test_what_a_dead_member_had_comes_to_others(pair: LocalCluster, topic: str) -> None:
    fill(pair.nameserver, topic, 20)
    process = subprocess.Popen([sys.executable, "-c", HANGING, pair.nameserver, topic], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    process.kill()
    process.communicate()
    listener = Listener()
    with pushing(pair, topic) as consumer:
        consumer.start(listener)
        wait_until(lambda: len(listener.calls) == 20 and lag(pair, topic) == 0, TIMEOUT_S)
    assert listener.calls == Counter(numbers(20))
    assert Counter(given.message.delivery_count for given in listener.given) == {1: 15, 2: 5}


@pytest.mark.fault
def test_a_job_outlives_its_broker(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        fill(cluster.nameserver, "t", 3)
        begun, go_on = threading.Semaphore(0), threading.Event()

        def wait(message: ReceivedMessage, times: int) -> ConsumeResult:
            begun.release()
            go_on.wait(TIMEOUT_S)
            return SUCCESS

        listener = Listener(wait)
        with pushing(cluster, "t", threads=2) as consumer:
            consumer.start(listener)
            for _ in range(2):
                assert begun.acquire(timeout=TIMEOUT_S)
            [broker] = cluster.brokers
            broker.kill()
            go_on.set()
            broker.start()
            wait_until(lambda: lag(cluster, "t") == 0, TIMEOUT_S)
        assert listener.calls == Counter(numbers(3))


def test_a_group_changes_from_one_kind_to_the_other_and_back(
    pair: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(pair.nameserver, topic, 10)
    leased = Listener()
    with pushing(pair, topic) as one:
        popped = Listener()
        one.start(popped)
        wait_until(lambda: lag(pair, topic) == 0, TIMEOUT_S)
        other = PushConsumer(pair.nameserver, group=topic)
        other.subscribe(topic)
        other.start(leased)
        wait_until(lambda: "take messages one by one, such as" in caplog.text, TIMEOUT_S)
        assert not other.assignment
    with other:
        wait_until(lambda: len(other.assignment) == 4, TIMEOUT_S)  # by itself, once the others are gone
        fill(pair.nameserver, topic, 10)
        wait_until(lambda: lag(pair, topic) == 0, TIMEOUT_S)
        assert leased.calls == Counter(numbers(10))
        back = pushing(pair, topic)
        again = Listener()
        back.start(again)
        wait_until(lambda: "divide its queues, such as" in caplog.text, TIMEOUT_S)
    with back:
        fill(pair.nameserver, topic, 10)
        wait_until(lambda: len(again.calls) == 10 and lag(pair, topic) == 0, TIMEOUT_S)
        with WorkQueueConsumer(pair.nameserver, group=topic) as simple:  # which is of the same kind
            simple.subscribe(topic)
            assert simple.receive(timeout=0) == []
        with PullConsumer(pair.nameserver, group=topic) as pull:
            pull.subscribe(topic)
            with pytest.raises(GroupConflict, match="take messages one by one"):
                pull.poll(TIMEOUT_S)
    assert again.calls == Counter(numbers(10))


def test_a_listener_may_not_close_and_subscriptions_come_before(pair: LocalCluster, topic: str) -> None:
    fill(pair.nameserver, topic, 1)
    errors: list[str] = []

    def close(messages: list[ReceivedMessage]) -> ConsumeResult:
        try:
            consumer.close()
        except InvalidArgument as error:
            errors.append(error.message)
        return SUCCESS

    with pushing(pair, topic) as consumer:
        consumer.start(close)
        wait_until(lambda: lag(pair, topic) == 0, TIMEOUT_S)
        with pytest.raises(InvalidArgument, match="before the first message"):
            consumer.subscribe("other")
        with pytest.raises(InvalidArgument, match="start it once"):
            consumer.start(close)
        assert (consumer.assignment, consumer.missed_messages, consumer.filtered_messages) == ([], 0, 0)
    assert errors == ["close waits for the listener: call it from another thread"]
