"""Orderly push consumers: one call at a time for each queue, nothing overtakes what failed."""

from __future__ import annotations

import threading
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

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
)
from minimq.features.listeners import leased_source
from minimq_common.names import dead_letter_topic, retry_topic
from support.listening import Listener
from support.waiting import wait_until

TIMEOUT_S = 40.0


def test_a_suspended_queue_stands_still_and_others_go_on(
    cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    bad, other = MessageQueue(topic, "broker-a", 0), MessageQueue(topic, "broker-a", 1)

    def answer(message: ReceivedMessage, times: int) -> ConsumeResult:
        return ConsumeResult.RETRY_LATER if message.body == b"bad" and times <= 3 else ConsumeResult.SUCCESS

    listener = Listener(answer)
    producer.send_many([Message(topic, b"bad"), Message(topic, b"behind")], queue=bad)
    with PushConsumer(
        cluster.nameserver, group=group, orderly=True, threads=1, batch_size=1, retry_delays_s=(0.3,)
    ) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        wait_until(lambda: listener.calls[b"bad"] == 1, TIMEOUT_S)
        producer.send_many((Message(topic, b"good") for _ in range(100)), queue=other)
        wait_until(lambda: listener.calls[b"behind"] == 1, TIMEOUT_S)
    bodies = [given.message.body for given in listener.given]
    assert bodies.index(b"behind") > max(at for at, body in enumerate(bodies) if body == b"bad")
    assert all(later - earlier >= 0.29 for earlier, later in pairwise(listener.times_of(b"bad")))
    assert listener.delivery_counts_of(b"bad") == [1, 2, 3, 4]
    assert bodies.index(b"good") < bodies.index(b"behind")


def test_tries_have_no_end_unless_told_and_then_the_message_is_a_dead_letter(
    cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    listener = Listener(
        lambda message, _: ConsumeResult.RETRY_LATER if message.body == b"bad" else ConsumeResult.SUCCESS
    )
    queue = MessageQueue(topic, "broker-a", 0)
    producer.send_many([Message(topic, b"bad", properties={"a": "1"}), Message(topic, b"behind")], queue=queue)
    with PushConsumer(cluster.nameserver, group=group, orderly=True, batch_size=1, retry_delays_s=(0.01,)) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        wait_until(lambda: listener.calls[b"bad"] > 25, TIMEOUT_S)
        assert listener.calls[b"behind"] == 0
    before = listener.calls[b"bad"]
    with PushConsumer(
        cluster.nameserver, group=group, orderly=True, batch_size=1, retry_delays_s=(0.01,), max_deliveries=6
    ) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        wait_until(lambda: listener.calls[b"behind"] == 1, TIMEOUT_S)
    assert listener.calls[b"bad"] == before + 6
    with PullConsumer(cluster.nameserver, group=f"{group}-dead") as consumer_of_dead:
        consumer_of_dead.subscribe(dead_letter_topic(group))
        [dead] = wait_until(lambda: consumer_of_dead.poll(0.2), TIMEOUT_S)
    assert (dead.body, dead.properties["a"], dead.properties["DELIVERY_COUNT"]) == (b"bad", "1", "6")
    assert dead.properties["ORIGIN_QUEUE"] == str(queue)


def test_a_suspended_queue_goes_to_another_member_which_begins_with_what_failed(
    cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    def answer(message: ReceivedMessage, _: int) -> ConsumeResult:
        return ConsumeResult.RETRY_LATER if message.body == b"bad" else ConsumeResult.SUCCESS

    first, second = Listener(answer), Listener()
    for queue in (MessageQueue(topic, broker, number) for broker in ("broker-a", "broker-b") for number in range(4)):
        producer.send_many([Message(topic, b"good"), Message(topic, b"bad"), Message(topic, b"behind")], queue=queue)

    def start(listener: Listener) -> PushConsumer:
        consumer = PushConsumer(
            cluster.nameserver, group=group, orderly=True, batch_size=1, retry_delays_s=(30,), revoke_timeout_s=1000
        )
        consumer.subscribe(topic)
        consumer.start(listener)
        return consumer

    with start(first):
        wait_until(lambda: first.calls[b"bad"] == 8, TIMEOUT_S)
        with start(second) as other:
            wait_until(lambda: second.calls[b"behind"] == 4, TIMEOUT_S)
            assert len(other.assignment) == 4
    assert second.calls == {b"bad": 4, b"behind": 4}


def test_a_hanging_call_is_told_but_nothing_overtakes_it(
    cluster: LocalCluster, producer: Producer, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    def answer(message: ReceivedMessage, _: int) -> ConsumeResult:
        if message.body == b"hangs":
            go_on.wait(TIMEOUT_S)
        return ConsumeResult.SUCCESS

    listener = Listener(answer)
    producer.send_many([Message(topic, b"hangs"), Message(topic, b"behind")])
    with PushConsumer(cluster.nameserver, group=group, orderly=True, batch_size=1, consume_timeout_s=0.1) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        wait_until(lambda: "has not returned" in caplog.text, TIMEOUT_S)
        assert listener.calls == {b"hangs": 1}
        go_on.set()
        wait_until(lambda: listener.calls[b"behind"] == 1, TIMEOUT_S)
    assert listener.calls[b"hangs"] == 1


def all_came(listener: Listener) -> bool:
    return listener.calls == {b"bad": 3, b"good": 100}


def test_broadcasting_tries_here_and_then_passes_over(
    cluster: LocalCluster,
    producer: Producer,
    admin: Admin,
    topic: str,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leased_source, "RETRY_SEND_DELAY_S", 0.05)
    listeners = [
        Listener(lambda message, _: ConsumeResult.RETRY_LATER if message.body == b"bad" else ConsumeResult.SUCCESS)
        for _ in range(2)
    ]
    consumers = []
    for number, listener in enumerate(listeners):
        consumer = PushConsumer(
            cluster.nameserver,
            group=group,
            client_id=f"reader-{number}",
            broadcast_dir=str(tmp_path),
            batch_size=1,
            max_deliveries=3,
        )
        consumer.subscribe(topic)
        consumer.start(listener)
        consumers.append(consumer)
    producer.send_many([Message(topic, b"bad"), *[Message(topic, b"good")] * 100])
    for listener in listeners:
        wait_until(partial(all_came, listener), TIMEOUT_S)
    for consumer in consumers:
        consumer.close()
    assert retry_topic(group) not in admin.list_topics()
