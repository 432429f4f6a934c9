"""Compaction on real servers: the table stays what it is, for whoever reads it, and whatever is killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, Compaction, LocalCluster, Message, Producer, PullConsumer, ReceivedMessage, WorkQueueConsumer
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

TOPIC = "state"
KEYS = 200
OPTIONS = {"segment_bytes": 1 << 17, "upkeep_interval_s": 0.05, "metrics": "127.0.0.1:0", "log_format": "json"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(data_dir=tmp_path / "data", brokers=1, broker_options=OPTIONS) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=2, compaction=Compaction(dirty_ratio=0.01))
        yield cluster


def update(cluster: LocalCluster, table: dict[str, bytes], count: int, chance: random.Random) -> None:
    """Send that many changes of a table, and make them there."""
    messages = []
    for number in range(count):
        key = f"key-{chance.randrange(KEYS)}"
        if chance.random() < 0.1:
            messages.append(Message.tombstone(TOPIC, key))
            table.pop(key, None)
        else:
            table[key] = b"%d " % number + bytes(chance.randrange(400))
            messages.append(Message(TOPIC, table[key], keys=(key,)))
    with Producer(cluster.nameserver) as producer:
        for first in range(0, count, 50):
            producer.send_many(messages[first : first + 50])


def polled_to_the_end(consumer: PullConsumer) -> Iterator[ReceivedMessage]:
    while len(consumer.assignment) < 2 or not consumer.at_end():
        yield from consumer.poll(0.2)


def read_table(cluster: LocalCluster, group: str) -> tuple[dict[str, bytes], int]:
    """Return the table that all messages add up to, and how many there are."""
    table: dict[str, bytes] = {}
    count = 0
    with PullConsumer(cluster.nameserver, group=group, start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        for message in polled_to_the_end(consumer):
            count += 1
            table.pop(message.keys[0], None)
            if not message.is_tombstone:
                table[message.keys[0]] = message.body
    return table, count


def fields(message: ReceivedMessage) -> tuple[object, ...]:
    return message.message_id, message.queue, message.queue_offset, message.stored_at, message.born_at, message.body


def removed(cluster: LocalCluster) -> float:
    """Return how many messages were removed since the broker started."""
    return Scrape(metrics_address(cluster.brokers[0].log_path)).value("minimq_broker_compaction_removed_messages_total")


def test_the_table_stays_what_it_is(cluster: LocalCluster) -> None:
    chance, table = random.Random(1), dict[str, bytes]()
    with PullConsumer(cluster.nameserver, group="behind", start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        update(cluster, table, 500, chance)
        seen: dict[str, bytes] = {}
        first = consumer.poll(10.0, max_messages=100)
        update(cluster, table, 3000, chance)
        wait_until(lambda: removed(cluster) > 2000, 30.0)
        assert first
        seen |= {message.keys[0]: message.body for message in first}
        seen |= {message.keys[0]: message.body for message in polled_to_the_end(consumer)}
        assert {key: body for key, body in seen.items() if body} == table
    found, count = read_table(cluster, "new")
    assert found == table
    assert count < 3500 - 2000


@pytest.mark.replaced_by("machine")
@pytest.mark.fault
def test_a_killed_broker_loses_nothing(cluster: LocalCluster) -> None:
    chance, table = random.Random(2), dict[str, bytes]()
    for turn in range(4):
        update(cluster, table, 1500, chance)
        if turn:
            wait_until(lambda: removed(cluster) > 0, 30.0)
        cluster.brokers[0].kill()
        cluster.brokers[0].restart()
        assert read_table(cluster, f"group-{turn}")[0] == table


def test_messages_that_are_taken_one_by_one_are_those_that_are_left(cluster: LocalCluster) -> None:
    chance, table = random.Random(3), dict[str, bytes]()
    update(cluster, table, 3000, chance)
    wait_until(lambda: removed(cluster) > 2000, 30.0)
    seen: dict[str, bytes] = {}
    with (
        WorkQueueConsumer(cluster.nameserver, group="workers", start="earliest") as consumer,
        Admin(cluster.nameserver) as admin,
    ):
        consumer.subscribe(TOPIC)
        while not seen or admin.describe_group("workers").lag:
            messages = consumer.receive(100, timeout=0.2)
            for message in messages:
                seen[message.keys[0]] = message.body
            consumer.ack(messages)
    assert {key: body for key, body in seen.items() if body} == table


@pytest.mark.replaced_by("machine")
def test_age_deletes_no_latest_message(tmp_path: Path) -> None:
    chance, table = random.Random(4), dict[str, bytes]()
    options = OPTIONS | {"retention_s": 1.0, "upkeep_interval_s": 0.05}
    with LocalCluster(data_dir=tmp_path / "data", brokers=1, broker_options=options) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("other", queues=1)
            admin.create_topic(TOPIC, queues=2, compaction=Compaction(dirty_ratio=0.01))
        with Producer(cluster.nameserver) as producer:
            for _ in range(4):
                update(cluster, table, 700, chance)
                producer.send_many(Message("other", bytes(10_000)) for _ in range(60))

            def first_of_other() -> int:
                with Admin(cluster.nameserver) as admin:
                    return admin.describe_topic("other").queues[0].min_offset

            wait_until(lambda: first_of_other() > 60, 30.0)
        wait_until(lambda: removed(cluster) > 300, 30.0)
        assert read_table(cluster, "reader")[0] == table


def test_a_search_finds_what_is_left_and_nothing_else(cluster: LocalCluster) -> None:
    chance, table = random.Random(6), dict[str, bytes]()
    update(cluster, table, 3000, chance)
    wait_until(lambda: removed(cluster) > 2000, 30.0)
    with PullConsumer(cluster.nameserver, group="scan", start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        latest = {message.keys[0]: message for message in polled_to_the_end(consumer)}
    with Admin(cluster.nameserver) as admin:
        for key in [*table][:20]:
            found = admin.find_messages(TOPIC, key=key)
            assert found.is_complete
            assert fields(found.messages[-1]) == fields(latest[key])
            assert found.messages[-1].body == table[key]
            [by_id] = admin.find_messages(TOPIC, message_id=latest[key].message_id).messages
            assert fields(by_id) == fields(latest[key])  # by the id that it had before
