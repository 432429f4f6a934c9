"""A broker is offline while a producer starts: each key keeps its queue, and waits if that queue is offline."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from minimq import (
    Admin,
    Compaction,
    LocalCluster,
    Message,
    MessageQueue,
    Producer,
    TransactionalProducer,
    TransactionResolution,
    by_hash,
    errors,
)
from support.waiting import wait_until

KEYS = [f"customer-{number}" for number in range(8)]
TOPICS = ("plain", "fifo", "compacted")
OFFLINE = "broker-b"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("plain", queues=2)
            admin.create_topic("fifo", queues=2, fifo=True)
            admin.create_topic("compacted", queues=2, compaction=Compaction(tombstone_s=3600))
        yield cluster


def message(topic: str, key: str) -> Message:
    return Message(topic, b"x", message_group=key) if topic == "fifo" else Message(topic, b"x", keys=[key])


def options(topic: str) -> dict[str, Any]:
    return {"selector": by_hash()} if topic == "plain" else {}


def send(producer: Producer, topic: str, key: str) -> MessageQueue:
    return producer.send(message(topic, key), **options(topic)).queue


def send_many(producer: Producer, topic: str, key: str) -> MessageQueue:
    [receipt] = producer.send_many([message(topic, key)], **options(topic))
    return receipt.queue


def in_transaction(producer: Producer, topic: str, key: str) -> MessageQueue:
    with producer.transaction() as transaction:
        transaction.send(message(topic, key), **options(topic))
    [receipt] = transaction.receipts
    return receipt.queue


def send_arrow(producer: Producer, topic: str, key: str) -> MessageQueue:
    column = "sharding_key" if topic == "plain" else "keys"
    [receipt] = producer.send_arrow(topic, pa.table({"body": [b"x"], column: [key]}))
    return receipt.queue


WAYS: dict[str, tuple[Callable[[Producer, str, str], MessageQueue], Sequence[str]]] = {
    "send": (send, TOPICS),
    "send_many": (send_many, TOPICS),
    "a transaction": (in_transaction, TOPICS),
    "send_arrow": (send_arrow, ("plain", "compacted")),
}


def test_a_producer_that_starts_while_a_broker_is_offline_keeps_the_queue_of_each_key(cluster: LocalCluster) -> None:
    with Producer(cluster.nameserver) as producer:
        queues = {(topic, key): send(producer, topic, key) for topic in TOPICS for key in KEYS}
    for topic in TOPICS:
        assert {queue.broker_name for (of, _), queue in queues.items() if of == topic} == {"broker-a", OFFLINE}
    cluster.server(OFFLINE).kill()
    with Admin(cluster.nameserver) as admin:
        wait_until(admin.offline_brokers)

    for way, (call, topics) in WAYS.items():
        with Producer(cluster.nameserver) as patient, Producer(cluster.nameserver, send_timeout_s=0.5) as producer:
            for topic in topics:
                online = [key for key in KEYS if queues[topic, key].broker_name != OFFLINE]
                assert [call(patient, topic, key) for key in online] == [queues[topic, key] for key in online], way
                waiting = next(key for key in KEYS if key not in online)
                with pytest.raises(errors.SendFailed, match=OFFLINE):
                    call(producer, topic, waiting)
    waiting = next(key for key in KEYS if queues["fifo", key].broker_name == OFFLINE)
    halves = TransactionalProducer(
        cluster.nameserver, group="g", check=lambda _: TransactionResolution.COMMIT, send_timeout_s=0.5
    )
    with halves, halves.transaction() as half, pytest.raises(errors.SendFailed, match=OFFLINE):
        half.send(message("fifo", waiting))


def test_keys_of_a_broker_that_lost_its_disk_or_is_forgotten_move_in_a_running_producer(tmp_path: Path) -> None:
    with (
        LocalCluster(brokers=2, data_dir=tmp_path) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver, send_timeout_s=0.5) as producer,
    ):
        for topic in TOPICS[:2]:
            admin.create_topic(topic, queues=2, fifo=topic == "fifo")
        keys = [next(key for key in KEYS if send(producer, topic, key).broker_name == OFFLINE) for topic in TOPICS[:2]]
        server = cluster.server(OFFLINE)
        server.stop()
        wait_until(admin.offline_brokers)
        for topic, key in zip(TOPICS[:2], keys, strict=True):
            with pytest.raises(
                errors.SendFailed, match=r"is offline: start it, or enter `minimq cluster delete-broker broker-b`"
            ):
                send(producer, topic, key)
        shutil.rmtree(server.data_dir)
        server.start()
        wait_until(lambda: [each.lacks_topics for each in admin.offline_brokers()] == [True])
        for topic, key in zip(TOPICS[:2], keys, strict=True):
            with pytest.raises(
                errors.SendFailed, match=f"broker-b of .* is online but does not have topic {topic}: restore"
            ):
                send(producer, topic, key)
        admin.create_topic("plain", queues=2, brokers=[OFFLINE])
        wait_until(lambda: is_sent(producer, "plain", keys[0], OFFLINE))
        admin.delete_broker(OFFLINE)
        wait_until(lambda: is_sent(producer, "fifo", keys[1], "broker-a"))


def is_sent(producer: Producer, topic: str, key: str, broker: str) -> bool:
    try:
        return send(producer, topic, key).broker_name == broker
    except errors.SendFailed:
        return False
