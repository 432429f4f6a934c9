"""Messages that a listener does not consume: they come again after growing waits, and end as dead letters."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minimq import (
    Admin,
    ConsumeResult,
    LocalCluster,
    Message,
    MessageQueue,
    Permission,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from minimq.features.listeners import leased_source
from minimq_common.names import dead_letter_topic, retry_topic
from support.listening import Listener
from support.waiting import wait_until

TIMEOUT_S = 40.0


def fail_on(body: bytes, attempts: int = 1_000_000) -> Listener:
    """Return a listener that does not consume one message, the first so many times."""

    def answer(message: ReceivedMessage, times: int) -> ConsumeResult:
        return ConsumeResult.RETRY_LATER if message.body == body and times <= attempts else ConsumeResult.SUCCESS

    return Listener(answer)


def test_a_message_comes_again_after_growing_waits(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str, group: str
) -> None:
    delays_s = (0.2, 0.6, 1.2)
    listener = fail_on(b"bad", attempts=3)
    with PushConsumer(cluster.nameserver, group=group, retry_delays_s=delays_s) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        sent = producer.send(
            Message(topic, b"bad", tag="t", keys=["k1", "k2"], properties={"a": "1", "RETRY_TOPIC": "x"})
        )
        wait_until(lambda: listener.calls[b"bad"] == 4, TIMEOUT_S)
    waits = [later - earlier for earlier, later in pairwise(listener.times_of(b"bad"))]
    for wait, delay in zip(waits, delays_s, strict=True):
        assert wait >= delay - 0.01
    assert listener.delivery_counts_of(b"bad") == [1, 2, 3, 4]
    first, *again = [given.message for given in listener.given]
    for message in again:
        assert message.topic == topic
        assert message.queue.topic == retry_topic(group)
        assert (message.tag, message.keys) == ("t", ("k1", "k2"))
        assert message.properties == {"a": "1", "RETRY_TOPIC": "x"}
        assert message.message_id == first.message_id == sent.message_id
        assert message.born_at == first.born_at
    assert admin.committed_offsets(group, topic)[sent.queue] == 1
    described = admin.describe_group(group)
    assert (described.retrying, described.lag) == (0, 0)
    assert {queue.queue.topic for queue in described.queues} == {topic}
    copies = admin.describe_topic(retry_topic(group)).queues
    assert sum(queue.max_offset for queue in copies) == 1


def test_good_messages_do_not_wait_for_a_bad_one_and_are_given_once(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str, group: str
) -> None:
    listener = fail_on(b"7", attempts=1)
    queue = MessageQueue(topic, "broker-a", 0)
    with PushConsumer(cluster.nameserver, group=group, batch_size=1, threads=1, retry_delays_s=(0.5,)) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        producer.send_many((Message(topic, b"%d" % number) for number in range(200)), queue=queue)
        wait_until(lambda: listener.calls[b"7"] == 2 and len(listener.calls) == 200, TIMEOUT_S)
    bodies = [given.message.body for given in listener.given]
    again = max(at for at, body in enumerate(bodies) if body == b"7")
    assert bodies[:again] + bodies[again + 1 :] == [b"%d" % number for number in range(200)]
    assert again > 8
    assert admin.committed_offsets(group, topic)[queue] == 200


def test_messages_that_wait_do_not_hold_a_queue_that_others_shall_have(
    cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    listener = fail_on(b"bad")
    with ExitStack() as stack:
        consumers = []
        for number in range(2):
            consumer = stack.enter_context(
                PushConsumer(cluster.nameserver, group=group, retry_delays_s=(60, 120), revoke_timeout_s=1000)
            )
            consumer.subscribe(topic)
            consumer.start(listener)
            consumers.append(consumer)
            if number == 0:
                producer.send_many([Message(topic, b"bad")] * 100)
                wait_until(lambda: listener.calls[b"bad"] == 100, TIMEOUT_S)
        wait_until(lambda: [len(item.assignment) for item in consumers] == [4, 4], TIMEOUT_S, what="they share")
    assert listener.calls[b"bad"] == 100


def test_a_hanging_call_is_told_and_its_messages_are_tried_again(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    def answer(message: ReceivedMessage, times: int) -> ConsumeResult:
        if message.body == b"hangs" and times == 1:
            go_on.wait(TIMEOUT_S)
        return ConsumeResult.SUCCESS

    listener = Listener(answer)
    with PushConsumer(
        cluster.nameserver, group=group, threads=2, consume_timeout_s=0.3, retry_delays_s=(0.1,)
    ) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        sent = producer.send(Message(topic, b"hangs"))
        wait_until(lambda: listener.calls[b"hangs"] == 2, TIMEOUT_S)
        wait_until(lambda: not consumer._runner.in_flight, TIMEOUT_S)
        go_on.set()
    assert listener.delivery_counts_of(b"hangs") == [1, 2]
    told = [record.getMessage() for record in caplog.records if "has not returned" in record.getMessage()]
    assert len(told) == 1
    assert f"queue={sent.queue} offset=0" in told[0]
    assert admin.committed_offsets(group, topic)[sent.queue] == 1


@pytest.mark.parametrize("orderly", [False, True])
def test_the_progress_is_stored_with_the_copy_of_the_first_unfinished_message(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str, group: str, orderly: bool
) -> None:
    listener = fail_on(b"bad")
    options: dict[str, Any] = {"orderly": True, "max_deliveries": 1} if orderly else {"retry_delays_s": (60,)}
    copies = dead_letter_topic(group) if orderly else retry_topic(group)
    with PushConsumer(cluster.nameserver, group=group, commit_interval_s=0, **options) as consumer:
        consumer.subscribe(topic)
        consumer.start(listener)
        queue = producer.send(Message(topic, b"bad")).queue
        wait_until(lambda: admin.committed_offsets(group, topic).get(queue) == 1, TIMEOUT_S, what="the progress")
        assert sum(each.max_offset for each in admin.describe_topic(copies).queues) == 1


# ---- faults -------------------------------------------------------------------------------------


@pytest.mark.fault
def test_while_copies_cannot_be_sent_messages_stay_in_flight_and_are_tried_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both brokers take nothing for a while; the message is tried again without them, and later through them."""
    monkeypatch.setattr(leased_source, "RETRY_SEND_DELAY_S", 0.1)
    listener = fail_on(b"bad", attempts=4)
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("t", queues=2)
        with PushConsumer(cluster.nameserver, group="g", retry_delays_s=(0.1,)) as consumer:
            with Producer(cluster.nameserver) as producer:
                sent = producer.send(Message("t", b"bad"))
            for broker in cluster.brokers:
                admin.set_broker_permission(broker.name, Permission.READ)
            consumer.subscribe("t")
            consumer.start(listener)
            wait_until(lambda: listener.calls[b"bad"] >= 3, TIMEOUT_S)
            assert not sum(admin.committed_offsets("g", "t").values())
            for broker in cluster.brokers:
                admin.set_broker_permission(broker.name, Permission.READ_WRITE)
            wait_until(lambda: listener.calls[b"bad"] == 5, TIMEOUT_S)
        assert listener.delivery_counts_of(b"bad") == [1, 2, 3, 4, 5]
        assert admin.committed_offsets("g", "t")[sent.queue] == 1
