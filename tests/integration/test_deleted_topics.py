"""A topic that is deleted under a group: its consumers say so at once, and go on with the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer, PushConsumer
from minimq_common.errors import TopicNotFound
from support.command import Minimq
from support.listening import Listener
from support.waiting import wait_until

TIMEOUT_S = 60.0


@pytest.fixture
def other(admin: Admin, new_name: Callable[[], str]) -> Iterator[str]:
    name = new_name()
    admin.create_topic(name, queues=2)
    yield name
    admin.delete_topic(name, if_exists=True)


def poll_until_found(consumer: PullConsumer, body: bytes) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while body not in [message.body for message in consumer.poll(0.2)]:
        assert time.monotonic() < deadline


def test_poll_raises_once_and_reads_the_other_topic_and_the_one_that_is_made_anew(
    cluster: LocalCluster,
    admin: Admin,
    topic: str,
    other: str,
    new_name: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = new_name()
    with PullConsumer(cluster.nameserver, group=group) as consumer, Producer(cluster.nameserver) as producer:
        consumer.subscribe(topic)
        consumer.subscribe(other)
        for name in (topic, other):
            producer.send(Message(name, name.encode()))
            poll_until_found(consumer, name.encode())
        admin.delete_topic(topic)
        wait_until(lambda: {queue.topic for queue in consumer.assignment} == {other}, TIMEOUT_S)
        with pytest.raises(TopicNotFound, match=f"topic {topic} was deleted while group '{group}' read it"):
            consumer.poll(TIMEOUT_S)

        consumer.commit()  # of the other topic: what was read of the deleted one is recorded nowhere
        assert [offset for queue, offset in admin.committed_offsets(group, other).items() if offset] == [1]
        producer.send(Message(other, b"goes on"))
        poll_until_found(consumer, b"goes on")
        admin.create_topic(topic, queues=2)
        producer.send(Message(topic, b"anew"))
        poll_until_found(consumer, b"anew")
    assert "last commit failed" not in caplog.text


def test_an_assigned_consumer_reports_it_once_and_reads_the_new_topic_after_another_assign(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    with PullConsumer(cluster.nameserver, group=new_name()) as consumer, Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"before")] * 5, queue=queue)
        consumer.assign([queue])
        poll_until_found(consumer, b"before")
        admin.delete_topic(topic)
        with pytest.raises(TopicNotFound, match=f"topic {topic} was deleted while this consumer read it: .* assign"):
            consumer.poll(TIMEOUT_S)
        assert consumer.assignment == []
        assert consumer.poll(0.3) == []
        admin.create_topic(topic, queues=2)
        producer.send(Message(topic, b"anew"), queue=queue)
        consumer.assign([queue])
        [message] = consumer.poll(TIMEOUT_S)
        assert (message.body, message.queue_offset) == (b"anew", 0)
        assert consumer.assignment == [queue]


def test_consume_ends_with_one_line_when_its_topic_is_deleted(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"x")] * 100)
    with Minimq(cluster.nameserver).running("consume", topic, "--group", new_name()) as consuming:
        assert consuming.stdout is not None
        for _ in range(100):
            consuming.stdout.readline()
        admin.delete_topic(topic)
        _, said = consuming.communicate(timeout=TIMEOUT_S)
    assert consuming.returncode == 1
    lines = said.decode().splitlines()
    assert len(lines) == 1, said.decode()
    [line] = lines
    assert line.startswith(f"error: topic {topic} was deleted while group ")


def test_a_topic_that_is_deleted_on_one_of_two_brokers_is_no_error(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    left = MessageQueue(topic, "broker-b", 0)
    with (
        PullConsumer(cluster.nameserver, group=new_name(), auto_commit=False) as consumer,
        Producer(cluster.nameserver) as producer,
    ):
        consumer.subscribe(topic)
        producer.send(Message(topic, b"before"), queue=left)
        poll_until_found(consumer, b"before")
        admin.delete_topic(topic, brokers=["broker-a"])
        producer.send(Message(topic, b"after"), queue=left)
        poll_until_found(consumer, b"after")
        wait_until(
            lambda: (consumer.poll(0.1), {queue.broker_name for queue in consumer.assignment})[1] == {"broker-b"},
            TIMEOUT_S,
        )


def test_a_push_consumer_logs_it_and_goes_on_with_the_other_topic(
    cluster: LocalCluster,
    admin: Admin,
    topic: str,
    other: str,
    new_name: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = Listener()
    with (
        PushConsumer(cluster.nameserver, group=new_name(), commit_interval_s=0.3) as consumer,
        Producer(cluster.nameserver) as producer,
    ):
        consumer.subscribe(topic)
        consumer.subscribe(other)
        consumer.start(listener)
        for name in (topic, other):
            producer.send(Message(name, name.encode()))
            wait_until(lambda name=name: listener.calls[name.encode()], TIMEOUT_S)  # type: ignore[misc]
        admin.delete_topic(topic)  # most likely before what was read of it is committed
        wait_until(lambda: f"topic {topic} was deleted" in caplog.text, TIMEOUT_S)
        producer.send(Message(other, b"goes on"))
        wait_until(lambda: listener.calls[b"goes on"], TIMEOUT_S)
    assert caplog.text.count(f"topic {topic} was deleted") == 1
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert not [text for text in told if f"topic '{topic}' does not exist" in text]
