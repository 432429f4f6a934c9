"""Code of the program that uses clients from where clients call it: handlers of the log, and callbacks of futures."""

from __future__ import annotations

from minimq import Cluster, LocalCluster, Message, Producer, WorkQueueConsumer
from support.waiting import wait_until

TIMEOUT_S = 60


def test_the_callback_of_an_acknowledgement_may_use_the_same_connection(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    stored: list[object] = []
    with (
        Cluster(cluster.nameserver) as connection,
        Producer(connection) as producer,
        WorkQueueConsumer(connection, group=group) as consumer,
    ):
        consumer.subscribe(topic)
        producer.send(Message(topic, b"x"))
        messages = wait_until(lambda: consumer.receive(timeout=1.0))
        future = consumer.ack_async(messages)
        future.add_done_callback(lambda _: stored.append(producer.send(Message(topic, b"after")).status.name))
        future.result(TIMEOUT_S)
        wait_until(lambda: stored == ["SEND_OK"])
