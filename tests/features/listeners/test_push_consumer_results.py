"""Listeners that answer for single messages of a call: the good ones are given once."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from minimq import (
    ConsumeResult,
    LocalCluster,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
)
from minimq.features.listeners import leased_source
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
    assert "RetryLater(level=None, indexes=(1, 20))" in told[0]
    assert "the indexes of the 20 messages of the call end at 19" in told[0]
