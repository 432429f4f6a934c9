"""Each replica compacts by itself, and the next master has the same table."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from minimq import Admin, Compaction, LocalCluster, Message, Producer, PullConsumer
from support.replicas import wait_for_master, wait_in_sync
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

TOPIC = "state"
OPTIONS = {"segment_bytes": 1 << 17, "upkeep_interval_s": 0.05, "metrics": "127.0.0.1:0", "log_format": "json"}


def update(cluster: LocalCluster, table: dict[str, bytes], chance: random.Random) -> None:
    """Send changes of a table, and make them there."""
    messages = []
    for number in range(2_000):
        key = f"key-{chance.randrange(100)}"
        table[key] = b"" if chance.random() < 0.1 else b"%d" % number + bytes(200)
        body = table[key]
        messages.append(Message(TOPIC, body, keys=(key,)) if body else Message.tombstone(TOPIC, key))
    with Producer(cluster.nameserver) as producer:
        for first in range(0, len(messages), 50):
            producer.send_many(messages[first : first + 50])


def read_table(cluster: LocalCluster, group: str) -> dict[str, bytes]:
    """Return the table that all messages add up to."""
    table: dict[str, bytes] = {}
    with PullConsumer(cluster.nameserver, group=group, start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        messages = consumer.poll(30.0)
        while messages:
            table |= {message.keys[0]: message.body for message in messages}
            messages = consumer.poll(3.0)
    return {key: body for key, body in table.items() if body}


@pytest.mark.replaced_by("machine")
def test_the_next_master_has_the_same_table(tmp_path: Path) -> None:
    chance, table = random.Random(7), dict[str, bytes]()
    with LocalCluster(brokers=1, slaves=1, data_dir=tmp_path / "data", broker_options=OPTIONS) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=2, compaction=Compaction(dirty_ratio=0.01))
        update(cluster, table, chance)

        def have_both_removed() -> bool:
            scrapes = [Scrape(metrics_address(broker.log_path)) for broker in cluster.brokers]
            return all(each.value("minimq_broker_compaction_removed_messages_total") > 500 for each in scrapes)

        wait_until(have_both_removed, 40.0)
        wait_in_sync(cluster, *cluster.brokers)
        master = wait_for_master(cluster)
        master.kill()
        wait_for_master(cluster, master)
        update(cluster, table, chance)
        expected = {key: body for key, body in table.items() if body}
        assert read_table(cluster, "after-fail-over") == expected
        master.restart()  # and copies what it needs
        wait_in_sync(cluster, *cluster.brokers)  # or it could not be elected
        update(cluster, table, chance)
        expected = {key: body for key, body in table.items() if body}
        other = wait_for_master(cluster, master)
        other.kill()
        wait_for_master(cluster, other)
        assert read_table(cluster, "back") == expected
