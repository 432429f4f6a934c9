"""`start="latest"` of work queues while brokers hang or are down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from minimq import Admin, ConsumeResult, LocalCluster, Message, MessageQueue, Producer, PushConsumer, WorkQueueConsumer
from minimq.errors import DeadlineExceeded, Unavailable
from support.waiting import wait_until

TIMEOUT_S = 60.0
A, B, C = (MessageQueue("orders", f"broker-{letter}", 0) for letter in "abc")


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("orders", queues=1)
        yield cluster


def receive(consumer: WorkQueueConsumer, into: set[bytes], *bodies: bytes) -> None:
    """Receive until all of some messages have come."""

    def done() -> bool:
        with suppress(Unavailable, DeadlineExceeded):
            messages = consumer.receive(timeout=1.0)
            into.update(message.body for message in messages)
            consumer.ack(messages)
        return into.issuperset(bodies)

    wait_until(done, TIMEOUT_S)


def test_what_is_sent_after_the_start_comes_whenever_its_broker_answers(cluster: LocalCluster) -> None:
    cluster.server(B.broker_name).kill()
    cluster.server(C.broker_name).pause()
    found = set[bytes]()
    with (
        WorkQueueConsumer(cluster.nameserver, group="new", start="latest") as consumer,
        Producer(cluster.nameserver) as producer,
    ):
        consumer.subscribe("orders")
        consumer.start()
        producer.send(Message("orders", b"healthy"), queue=A)
        receive(consumer, found, b"healthy")
        cluster.server(B.broker_name).start()
        producer.send(Message("orders", b"down"), queue=B)
        receive(consumer, found, b"down")
        cluster.server(C.broker_name).resume()
        producer.send(Message("orders", b"hung"), queue=C)
        receive(consumer, found, b"hung")
    assert found == {b"healthy", b"down", b"hung"}


def test_a_group_that_has_begun_is_ready_while_a_broker_hangs(cluster: LocalCluster) -> None:
    with WorkQueueConsumer(cluster.nameserver, group="begun", start="latest") as first:
        first.subscribe("orders")
        first.start()
    cluster.server(C.broker_name).pause()
    try:
        with PushConsumer(cluster.nameserver, group="begun", start="latest", mode="work_queue") as consumer:
            consumer.subscribe("orders")
            consumer.start(lambda _: ConsumeResult.SUCCESS)
            assert consumer.is_ready
    finally:
        cluster.server(C.broker_name).resume()
