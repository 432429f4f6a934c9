"""Brokers are killed while delayed messages wait, are published, and are recalled: each comes once, and never early."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MinimqError, Producer
from support.chance import SEED, rounds
from support.delay_world import DelayWorld
from support.reading import check_brokers, read_all
from support.replicas import find_master, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

ROUNDS = rounds(3)


@pytest.mark.replaced_by("machine")
@pytest.mark.timeout(200 + 20 * ROUNDS)
def test_each_message_is_recalled_or_comes_once_whenever_the_broker_is_killed(tmp_path: Path) -> None:
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    options = {"segment_bytes": 1 << 18, "upkeep_interval_s": 0.2}
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=3)
        world = DelayWorld(cluster, chance)
        try:
            for _ in range(ROUNDS):
                world.wait_for_more()
                time.sleep(chance.uniform(0.0, 1.5))  # a random moment, not a wait for something
                broker.kill()
                time.sleep(chance.choice((0.0, 1.0)))
                broker.start()
        finally:
            world.stop()
        world.check()
    check_brokers(cluster)


@pytest.mark.replaced_by("machine")
@pytest.mark.timeout(300 + 40 * ROUNDS)
def test_each_message_is_recalled_or_comes_once_over_fail_overs(tmp_path: Path) -> None:
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    with replicas(tmp_path, slaves=1, role="sync-master", segment_bytes=1 << 18, upkeep_interval_s=0.5) as cluster:
        world = DelayWorld(cluster, chance)
        try:
            for _ in range(ROUNDS):
                world.wait_for_more()
                time.sleep(chance.uniform(0.0, 1.0))  # a random moment, not a wait for something
                master = find_master(cluster) or wait_for_master(cluster)
                how = chance.choice(("kill", "pause"))
                getattr(master, how)()
                wait_for_master(cluster, master)
                master.resume() if how == "pause" else master.start()
                wait_in_sync(cluster, *cluster.brokers)
        finally:
            world.stop()
        world.check()
        wait_caught_up(cluster)


@pytest.mark.replaced_by("machine")
def test_what_was_due_while_the_broker_was_offline_comes_when_it_is_back(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        count = 2_000
        with Producer(cluster.nameserver) as producer:
            receipts = producer.send_many(
                Message("t", b"%d" % number, deliver_after_s=0.5 + number / 10_000) for number in range(count)
            )
        broker.kill()
        last = max(receipt.due_at for receipt in receipts if receipt.due_at is not None)
        wait_until(lambda: time.time() > last.timestamp())
        broker.start()
        expected = Counter(b"%d" % number for number in range(count))
        wait_until(lambda: Counter(message.body for message in read_all(cluster.nameserver, "t")) == expected)
    check_brokers(cluster)


@pytest.mark.replaced_by("machine")
@pytest.mark.timeout(200)
def test_a_crowd_that_is_due_at_once_comes_once_when_the_broker_dies_in_the_middle(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options={"segment_bytes": 1 << 18}) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
            admin.create_topic("t", queues=4)
            count, moment = 3_000, time.time() + 6.0
            lone = [Message("t", b"%d" % number, deliver_at=moment, recallable=True) for number in range(count)]
            together = [Message("t", b"%d" % number, deliver_at=moment) for number in range(count, 4 * count)]
            producer.send_many(lone + together)
            broker.kill()  # in the middle at times, and once before
            wait_until(lambda: time.time() > moment)
            for _ in range(3):
                broker.start()
                wait_until(lambda: stored(admin) or time.time() > moment + 60)
                time.sleep(chance.uniform(0.0, 0.05))  # a random moment, not a wait for something
                broker.kill()
            broker.start()
            wait_until(lambda: stored(admin) == 4 * count)
            [totals] = admin.delayed_totals(["t"])
            assert (totals.messages, totals.next_due_at) == (0, None)
        bodies = Counter(message.body for message in read_all(cluster.nameserver, "t"))
        assert bodies == Counter(b"%d" % number for number in range(4 * count))
    check_brokers(cluster)


def stored(admin: Admin) -> int:
    try:
        return admin.describe_topic("t").messages
    except MinimqError:  # the broker is offline
        return 0
