"""Compacted topics: each key has its queue, whoever sends, and nothing goes there that could not be compacted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from minimq import Admin, Compaction, LocalCluster, Message, Producer, PullConsumer, ReceivedMessage, aio, by_hash
from minimq.errors import InvalidArgument, MinimqError, TopicExists
from minimq.features.transactions.transactions import RecordsSender
from minimq_common.batch.builder import BatchBuilder
from minimq_proto.v1 import broker_pb2
from support.command import Minimq
from support.compacted_batches import compacted_of
from support.raw_sender import RawSender

KEYS = 40


@pytest.fixture
def topic(cluster: LocalCluster, new_name: Callable[[], str]) -> str:
    """Return a compacted topic with two queues on each of two brokers."""
    name = new_name()
    with Admin(cluster.nameserver) as admin:
        admin.create_topic(name, queues=2, compaction=Compaction(tombstone_s=3600))
    return name


def test_a_key_has_one_queue_whoever_sends(cluster: LocalCluster, topic: str) -> None:
    messages = [Message(topic, b"%d" % number, keys=(f"key-{number % KEYS}",)) for number in range(4 * KEYS)]

    async def send_by_asyncio() -> list[object]:
        async with aio.Producer(cluster.nameserver) as producer:
            return [(await producer.send(message)).queue for message in messages[2 * KEYS : 3 * KEYS]]

    with Producer(cluster.nameserver) as producer:
        found = [producer.send(message).queue for message in messages[:KEYS]]
        found += [receipt.queue for receipt in producer.send_many(messages[KEYS : 2 * KEYS])]
        found += asyncio.run(send_by_asyncio())  # type: ignore[arg-type]
        found += [producer.send(Message.tombstone(topic, message.keys[0])).queue for message in messages[3 * KEYS :]]

    assert found[:KEYS] * 4 == found
    assert len(set(found)) == 4


def test_tombstones_come_as_messages_without_a_body(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str]
) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"x", keys=("a", "b")), Message.tombstone(topic, "a", {"why": "sold"})])

    with PullConsumer(cluster.nameserver, group=new_name(), start="earliest") as consumer:
        consumer.subscribe(topic)
        found: list[ReceivedMessage] = []
        while len(found) < 2:
            found += consumer.poll(10)

    assert [(message.is_tombstone, message.keys) for message in found] == [(False, ("a", "b")), (True, ("a",))]
    assert found[1].properties == {"why": "sold"}


def test_what_could_not_be_compacted_is_rejected(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str]
) -> None:
    plain = new_name()
    with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
        admin.create_topic(plain)
        for keys, reason in (((), "compacted by key, and the message has none"), (("", "b"), "a key .* is empty")):
            message = Message(topic, b"x", keys=keys)
            with pytest.raises(InvalidArgument, match=reason):
                producer.send(message)
            with pytest.raises(InvalidArgument, match=reason):
                producer.send_many([message])
        keyed = Message(topic, b"x", keys=("a",))
        with pytest.raises(InvalidArgument, match="has its queue: leave out queue and selector"):
            producer.send(keyed, selector=by_hash())
        with pytest.raises(InvalidArgument, match="is not compacted: it takes no tombstones"):
            producer.send(Message.tombstone(plain, "a"))
        for wrong in (Message.tombstone(plain, "a"), Message(topic, b"")):
            with pytest.raises(InvalidArgument, match=r"takes no tombstones|has none"):
                producer.send_many([wrong])
        empty = Message(topic, b"", keys=("a",))
        for send in (producer.send, producer.send_async, lambda message: producer.send_many([message, keyed])):
            with pytest.raises(InvalidArgument, match=r"has an empty body, .*Message\.tombstone\(topic, key\)"):
                send(empty)
        with pytest.raises(InvalidArgument, match="has an empty body"), producer.transaction() as transaction:
            transaction.send(empty)
        with pytest.raises(InvalidArgument, match="decides the queue of each key"):
            admin.update_topic(topic, write_queues=1)
        with pytest.raises(MinimqError, match="decides the queue of each key"):
            admin.update_topic(topic, queues=4)
        with pytest.raises(TopicExists, match="compacted with 4 queues on all"):
            admin.create_topic(topic, queues=2, compaction=Compaction(tombstone_s=10))
        with pytest.raises(InvalidArgument, match="a FIFO topic cannot be compacted"):
            admin.create_topic(new_name(), fifo=True, compaction=Compaction())
    records = BatchBuilder(1000)
    records.add([keyed])
    with RecordsSender(cluster.nameserver) as sender, pytest.raises(InvalidArgument, match="send its messages by"):
        sender.send(topic, None, records)


def test_a_compacted_batch_of_a_producer_is_rejected(cluster: LocalCluster, topic: str) -> None:
    builder = BatchBuilder(1 << 20)
    builder.add([Message("", b"%d" % number, keys=("a",)) for number in range(3)])
    batch = compacted_of([builder.build(1, 7, 0)], [False, False, True])
    with RawSender(cluster.brokers[0].address) as sender:
        request = broker_pb2.AppendRequest(appends=[broker_pb2.Append(topic=topic, batch=batch, key_queues=4)])
        [response] = sender.stub.Append(iter([request]), timeout=30)
    assert "cannot be compacted" in response.results[0].failure.message


def test_the_command_creates_and_describes_compacted_topics(cluster: LocalCluster, new_name: Callable[[], str]) -> None:
    name, run = new_name(), Minimq(cluster.nameserver)

    run("topic", "create", name, "--compact")

    described = json.loads(run("topic", "describe", name, "--output", "json"))
    rules = {"min_lag_s": 0, "tombstone_s": 86_400, "dirty_ratio": 0.5}
    assert [broker["compaction"] for broker in described["brokers"]] == [rules] * len(described["brokers"])
    assert "Compacted" in run("topic", "describe", name)
    assert "exists already" in run("topic", "create", name, "--compact", "--if-not-exists")
