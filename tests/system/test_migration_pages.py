"""The other side of the pages about migrations: that of Kafka runs on the mock of its client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition

from minimq import Admin, LocalCluster, PullConsumer, ReceivedMessage
from minimq.kafka import bytes_of, headers_of
from support.cases import for_each
from support.pages import ROOT, blocks_of

MIGRATIONS = [
    "docs/migrating-from-aiokafka.md",
    "docs/migrating-from-celery.md",
    "docs/migrating-from-confluent-kafka.md",
    "docs/migrating-from-rocketmq.md",
]


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """The address of a broker that librdkafka, Kafka's client, has for tests."""
    owner = KafkaProducer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    [broker] = owner.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    owner.flush(1)


@pytest.mark.slow
def test_theirs_for_confluent_kafka(kafka: str) -> None:
    """The mock has no requests of administrators, so those are left out."""
    theirs = blocks_of("docs/migrating-from-confluent-kafka.md", "py")
    played = [block for block in theirs if "AdminClient" not in block]
    assert len(played) == len(theirs) - 1 >= 6
    for block in played:
        exec(compile(block.replace("127.0.0.1:9092", kafka), "theirs", "exec"), {})


@for_each("page", MIGRATIONS)
def test_theirs_is_python(page: str) -> None:
    theirs = blocks_of(page, "py")
    assert len(theirs) >= 5
    for block in theirs:
        compile(block, page, "exec")


@pytest.mark.slow
def test_a_topic_of_kafka_is_copied_key_by_key_and_committed(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    example = __import__("from_kafka")
    with LocalCluster(brokers=1) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("shop", queues=4)
        source = KafkaProducer({"bootstrap.servers": kafka})
        for number in range(200):
            source.produce("shop", b"%d" % number, key=f"o-{number % 7}" if number % 2 else None, headers={"at": "1"})
        source.produce("shop", None, key="o-1")
        source.produce("shop", b"", key=b"\x00\xff", headers=[("h", b"\x01"), ("h", b"\xff")])
        source.flush(10)
        assert example.copy(kafka, "shop", cluster.nameserver, idle_s=4) == 202
        group = KafkaConsumer({"bootstrap.servers": kafka, "group.id": "minimq-copy"})
        places = group.committed([TopicPartition("shop", number) for number in range(4)], timeout=10)
        assert sum(place.offset for place in places if place.offset > 0) == 202
        group.close()
        copied = read(cluster.nameserver, 202)
    assert sorted(int(message.body) for message in copied if message.body) == [*range(200)]
    assert [message.keys for message in copied if "kafka-null" in message.properties] == [("o-1",)]
    [binary] = [message for message in copied if not message.body and "kafka-null" not in message.properties]
    assert [bytes_of(key) for key in binary.keys] == [b"\x00\xff"]
    assert [value for name, value in headers_of(binary.properties) if name == "h"] == [b"\x01", b"\xff"]
    assert len({message.properties["kafka"] for message in copied}) == 202
    assert all(message.properties["at"] == "1" for message in copied if message.body)
    for key in (f"o-{number}" for number in range(7)):
        of_key = [message for message in copied if message.keys == (key,)]
        assert len({message.queue for message in of_key}) == 1
        numbers = [int(message.body) for message in of_key if message.body]
        assert numbers == sorted(numbers), key


def read(nameserver: str, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    with PullConsumer(nameserver, group="reading") as consumer:
        consumer.subscribe("shop")
        while len(messages) < count:
            messages += consumer.poll(timeout=1.0)
    return messages
