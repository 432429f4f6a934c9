"""`start="latest"`: no message is skipped that is sent once the consumer has started, or is ready."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from minimq import (
    Admin,
    ConsumeResult,
    LocalCluster,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    WorkQueueConsumer,
)
from minimq.features.listeners.push_consumer import Mode
from support.waiting import wait_until

TIMEOUT_S = 40.0

Send = Callable[[], None]


@pytest.fixture
def send(cluster: LocalCluster, producer: Producer, topic: str) -> Send:
    """Sends a message to each queue of both brokers; there are older ones already."""
    with Admin(cluster.nameserver) as admin:
        queues = admin.route(topic).write_queues()

    def to_all(body: bytes = b"new") -> None:
        for queue in queues:
            producer.send(Message(topic, body), queue=queue)

    to_all(b"old")
    return to_all


class Bodies:
    """A listener that waits for the new message of each of the 8 queues."""

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self.done = threading.Event()

    def __call__(self, messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        self.found += [message.body for message in messages]
        if len(self.found) >= 8:
            self.done.set()
        return ConsumeResult.SUCCESS


def test_a_broadcasting_consumer_gets_what_is_sent_after_its_start(
    cluster: LocalCluster, topic: str, group: str, send: Send, tmp_path: Path
) -> None:
    bodies = Bodies()
    consumer = PushConsumer(cluster.nameserver, group=group, start="latest", client_id=group, broadcast_dir=tmp_path)
    with consumer:
        consumer.subscribe(topic)
        consumer.start(bodies)
        send()
        assert bodies.done.wait(TIMEOUT_S)
        assert bodies.found == [b"new"] * 8


@pytest.mark.parametrize("mode", ["queues", "work_queue"])
def test_a_group_that_has_begun_keeps_its_start_at_a_broker_that_gets_the_topic_later(
    cluster: LocalCluster, admin: Admin, new_name: Callable[[], str], mode: Mode
) -> None:
    """Also if its first member there starts only after messages were sent to it."""
    topic = group = new_name()
    first, second = [broker.name for broker in cluster.brokers]
    admin.create_topic(topic, queues=1, brokers=[first])
    with PushConsumer(cluster.nameserver, group=group, start="latest", mode=mode) as consumer:
        consumer.subscribe(topic)
        consumer.start(Bodies())
    admin.create_topic(topic, queues=8, brokers=[second])
    bodies = Bodies()
    with Producer(cluster.nameserver) as producer:
        queues = [each for each in admin.route(topic).write_queues() if each.broker_name == second]
        for queue in queues:
            producer.send(Message(topic, b"new"), queue=queue)
    with PushConsumer(cluster.nameserver, group=group, start="latest", mode=mode) as consumer:
        consumer.subscribe(topic)
        consumer.start(bodies)
        assert bodies.done.wait(TIMEOUT_S)
    assert bodies.found == [b"new"] * 8


def test_a_work_queue_reads_a_topic_from_its_beginning_that_is_created_again(
    cluster: LocalCluster, admin: Admin, producer: Producer, topic: str, group: str
) -> None:
    with WorkQueueConsumer(cluster.nameserver, group=group, start="latest") as consumer:
        consumer.subscribe(topic)
        assert not consumer.receive(timeout=0.0)
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=1)
        queues = [MessageQueue(topic, broker.name, 0) for broker in cluster.brokers]
        for queue in queues:
            producer.send(Message(topic, b"new"), queue=queue)
        found = set[MessageQueue]()

        def done() -> bool:
            found.update(message.queue for message in consumer.receive(timeout=1.0))
            return found.issuperset(queues)

        wait_until(done, TIMEOUT_S)
