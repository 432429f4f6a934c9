"""Segments are rewritten while brokers are killed, and while a new slave copies them: what is needed stays."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from minimq import (
    Admin,
    LocalCluster,
    Message,
    Producer,
    ReceivedMessage,
    TransactionalProducer,
    TransactionResolution,
    WorkQueueConsumer,
)
from support.chance import SEED, rounds
from support.reading import check_brokers, read_all
from support.replicas import replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

ROUNDS = rounds(4)
TIMEOUT_S = 60.0
#: Segments of a few messages, all of which are too old at once.
OPTIONS: dict[str, Any] = {
    "segment_bytes": 1 << 16,
    "upkeep_interval_s": 0.05,
    "retention_s": 0.1,
    "metrics": "127.0.0.1:0",
    "log_format": "json",
}


class World:
    """Messages of a topic that stays, of one that goes, of one that is later, and of one that is undecided."""

    def __init__(self, cluster: LocalCluster, chance: random.Random) -> None:
        self.cluster, self.chance = cluster, chance
        self.kept: list[bytes] = []
        self.later: Counter[bytes] = Counter()
        self.numbers = iter(range(1 << 30))
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("kept", queues=2, retention_s=86_400)
            admin.create_topic("gone", queues=1)
            admin.create_topic("later", queues=1, retention_s=86_400)
            admin.create_topic("decided", queues=1, retention_s=86_400)

    def send(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            body = b"%d " % next(self.numbers)
            producer.send(Message("kept", body + bytes(self.chance.randrange(500))))
            self.kept.append(body)
            producer.send(Message("gone", bytes(3_000)))
            if self.chance.random() < 0.2:
                producer.send(Message("later", body, deliver_after_s=self.chance.uniform(1.0, 6.0), recallable=True))
                self.later[body] += 1

    def check(self) -> None:
        assert sorted(_word(message) for message in read_all(self.cluster.nameserver, "kept")) == sorted(self.kept)

    def check_later(self) -> None:
        def all_are_there() -> bool:
            found = Counter(_word(message) for message in read_all(self.cluster.nameserver, "later"))
            assert found <= self.later, "none comes twice"
            return found == self.later

        wait_until(all_are_there, TIMEOUT_S)


def _word(message: ReceivedMessage) -> bytes:
    return message.body.partition(b" ")[0] + b" "


@contextmanager
def undecided(cluster: LocalCluster) -> Iterator[TransactionalProducer]:
    """A half message that nobody decides before the end of the block."""
    with (
        Admin(cluster.nameserver) as admin,
        TransactionalProducer(
            cluster.nameserver, group="sellers", check=lambda _: TransactionResolution.COMMIT
        ) as producer,
        producer.transaction() as tx,
    ):
        tx.send(Message("decided", b"sold"))
        yield producer
        assert len(admin.list_transactions("sellers").transactions) == 1


def rewritten(cluster: LocalCluster) -> float:
    values = [
        Scrape(metrics_address(broker.log_path)).value("minimq_broker_segments_rewritten_total")
        for broker in cluster.brokers
        if broker.pid is not None
    ]
    return min(values)


@pytest.mark.replaced_by("machine")
@pytest.mark.timeout(200 + 20 * ROUNDS)
def test_a_broker_that_is_killed_while_it_rewrites_loses_nothing(tmp_path: Path) -> None:
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=OPTIONS) as cluster:
        [broker] = cluster.brokers
        world = World(cluster, chance)
        with Producer(cluster.nameserver) as producer, undecided(cluster):
            for number in range(ROUNDS):
                world.send(producer, 60)
                if number % 2:
                    wait_until(lambda: rewritten(cluster) > 0, TIMEOUT_S)
                time.sleep(chance.uniform(0.0, 0.1))  # a random moment, not a wait for something
                broker.kill()
                broker.start()
                world.check()
            wait_until(lambda: rewritten(cluster) > 0, TIMEOUT_S)
        wait_until(lambda: len(read_all(cluster.nameserver, "decided")) == 1, TIMEOUT_S)
        world.check_later()
        world.check()
    check_brokers(cluster)


@pytest.mark.replaced_by("machine")
@pytest.mark.timeout(200)
def test_a_new_slave_copies_a_rewritten_log_and_takes_over(tmp_path: Path) -> None:
    with replicas(tmp_path, **OPTIONS) as cluster:
        world = World(cluster, random.Random(SEED))
        master = wait_for_master(cluster)
        [slave] = [broker for broker in cluster.brokers if broker is not master]
        with Producer(cluster.nameserver) as producer:
            world.send(producer, 60)
            wait_until(lambda: rewritten(cluster) > 0, TIMEOUT_S, what="both have rewritten segments")
            slave.stop()
            shutil.rmtree(slave.data_dir)
            world.send(producer, 40)
            slave.start()
            world.send(producer, 20)  # while it copies
            wait_in_sync(cluster, *cluster.brokers)
            wait_caught_up(cluster)
            master.kill()
            assert wait_for_master(cluster, master) is slave
            world.check()
            world.send(producer, 20)
        world.check()
        with WorkQueueConsumer(cluster.nameserver, group="workers", start="earliest") as consumer:
            consumer.subscribe("kept")
            taken: list[bytes] = []
            while len(taken) < len(world.kept):
                messages = consumer.receive(500, timeout=TIMEOUT_S)
                assert messages
                taken += map(_word, messages)
                consumer.ack(messages)
        assert sorted(taken) == sorted(world.kept)
        world.check_later()
        master.start()
        wait_caught_up(cluster)
