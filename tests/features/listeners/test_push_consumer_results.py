"""Listeners that answer for single messages of a call: the good ones are given once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import minimq.aio
from minimq import (
    Admin,
    ConsumeResult,
    LocalCluster,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
)
from minimq.features.listeners import leased_source
from minimq_common.names import dead_letter_topic
from support.waiting import wait_until

TIMEOUT_S = 40.0
COUNT = 40
BAD = (0, 3, 4, 39)
#: How often each message is given, when a bad one is tried again twice.
GIVEN = {number: 3 if number in BAD else 1 for number in range(COUNT)}


class Judge:
    """A listener that fails the bad messages of each call, and notes how often it was given each."""

    def __init__(self) -> None:
        self.given: Counter[int] = Counter()
        self._lock = threading.Lock()

    def __call__(self, messages: list[ReceivedMessage]) -> RetryLater:
        numbers = [int(message.body) for message in messages]
        with self._lock:
            self.given.update(numbers)
        return RetryLater(indexes=[index for index, number in enumerate(numbers) if number in BAD])

    def is_done(self) -> bool:
        with self._lock:
            return all(self.given[number] >= times for number, times in GIVEN.items())


def send(cluster: LocalCluster, topic: str) -> MessageQueue:
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"%d" % number) for number in range(COUNT)], queue=queue)
    return queue


def test_only_what_failed_of_a_call_is_tried_again_and_becomes_a_dead_letter(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    queue, judge = send(cluster, topic), Judge()
    with PushConsumer(cluster.nameserver, group=group, retry_delays_s=(0.05,), max_deliveries=3) as consumer:
        consumer.subscribe(topic)
        consumer.start(judge)
        wait_until(judge.is_done, TIMEOUT_S)
        dead: list[ReceivedMessage] = []
        with PullConsumer(cluster.nameserver, group=f"{group}-dead") as undertaker:
            wait_until(lambda: dead_letter_topic(group) in admin.list_topics(), TIMEOUT_S)
            undertaker.subscribe(dead_letter_topic(group))
            deadline = time.monotonic() + TIMEOUT_S
            while len(dead) < len(BAD) and time.monotonic() < deadline:
                dead += undertaker.poll(0.2)
    assert judge.given == GIVEN
    assert sorted(int(message.body) for message in dead) == list(BAD)
    assert admin.committed_offsets(group, topic)[queue] == COUNT


def test_without_tries_only_what_failed_is_a_dead_letter(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    send(cluster, topic)
    judge, dead = Judge(), dead_letter_topic(group)

    def dead_letters() -> int:
        return sum(item.messages for item in admin.describe_topic(dead).queues) if dead in admin.list_topics() else 0

    with PushConsumer(cluster.nameserver, group=group, max_deliveries=1) as consumer:
        consumer.subscribe(topic)
        consumer.start(judge)
        wait_until(lambda: dead_letters() >= len(BAD), TIMEOUT_S)
    assert judge.given == dict.fromkeys(range(COUNT), 1)
    assert dead_letters() == len(BAD)


def test_a_consumer_for_broadcasting_tries_only_what_failed(
    cluster: LocalCluster, topic: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased_source, "RETRY_SEND_DELAY_S", 0.05)
    send(cluster, topic)
    judge = Judge()
    with PushConsumer(
        cluster.nameserver,
        group=group,
        client_id="display-1",
        model="broadcasting",
        offsets_dir=tmp_path,
        max_deliveries=3,
    ) as consumer:
        consumer.subscribe(topic)
        consumer.start(judge)
        wait_until(judge.is_done, TIMEOUT_S)
    assert judge.given == GIVEN


def test_a_coroutine_function_answers_for_single_messages_too(cluster: LocalCluster, topic: str, group: str) -> None:
    send(cluster, topic)
    judge = Judge()

    async def listen(messages: list[ReceivedMessage]) -> RetryLater:
        return judge(messages)

    async def run() -> None:
        async with minimq.aio.PushConsumer(
            cluster.nameserver, group=group, retry_delays_s=(0.05,), max_deliveries=3
        ) as consumer:
            consumer.subscribe(topic)
            await consumer.start(listen)
            await asyncio.to_thread(wait_until, judge.is_done, TIMEOUT_S)

    asyncio.run(run())
    assert judge.given == GIVEN


def test_an_index_of_no_message_is_told_and_all_are_tried_again(
    cluster: LocalCluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster, topic)
    given: Counter[int] = Counter()

    def listen(messages: list[ReceivedMessage]) -> ConsumeResult | RetryLater:
        given.update(int(message.body) for message in messages)
        return RetryLater(indexes=[1, len(messages)]) if len(messages) > 1 else ConsumeResult.SUCCESS

    with PushConsumer(cluster.nameserver, group=group, batch_size=20, retry_delays_s=(0.05,)) as consumer:
        consumer.subscribe(topic)
        consumer.start(listen)
        wait_until(lambda: given.total() >= 2 * COUNT, TIMEOUT_S)
    assert given == dict.fromkeys(range(COUNT), 2)
    told = [text for record in caplog.records if "which counts as RETRY_LATER" in (text := record.getMessage())]
    assert len(told) == 1
    assert "RetryLater(first=0, level=None, indexes=(1, 20))" in told[0]
    assert "the indexes of the 20 messages of the call end at 19" in told[0]
