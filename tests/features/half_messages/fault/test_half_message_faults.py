"""Transactions with a database: whoever is killed, messages are delivered once if it committed, and never if not."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, TransactionalProducer, TransactionResolution
from minimq.errors import TransactionEnded
from minimq.local.server_process import BrokerProcess
from support import half_seller
from support.chance import SEED, rounds
from support.command import environment
from support.half_seller import GROUP, check, prepare, sold
from support.reading import check_brokers, read_all
from support.replicas import LEASE_S, check_same, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

ROUNDS = rounds(2)
TIMEOUT_S = 60.0
QUICK: dict[str, Any] = {"check_back_after_s": 0.1, "max_check_backs": 10_000, "upkeep_interval_s": 0.2}
#: For a master with a slave: without, a fail-over may take back what was acknowledged a moment ago.
SYNCHRONOUS: dict[str, Any] = {**QUICK, "role": "sync-master", "min_in_sync": 1}


@contextmanager
def selling(cluster: LocalCluster, database: Path, seed: int) -> Iterator[subprocess.Popen[bytes]]:
    """A program that sells, killed at the end of the block."""
    arguments = [sys.executable, half_seller.__file__, cluster.nameserver, "t", str(database), str(seed)]
    with subprocess.Popen(arguments, env=environment()) as program:
        try:
            yield program
        finally:
            program.kill()


def more_sold(database: Path, before: int, count: int = 20) -> None:
    wait_until(lambda: len(sold(database)) >= before + count, TIMEOUT_S, what="more is sold")


def verify(cluster: LocalCluster, database: Path) -> None:
    """Have all transactions ended by one who was there at none of them, and compare."""
    with (
        TransactionalProducer(cluster.nameserver, group=GROUP, check=partial(check, database)),
        Admin(cluster.nameserver) as admin,
    ):
        wait_until(lambda: admin.list_transactions(GROUP).count == 0, TIMEOUT_S, what="all transactions have ended")
        wanted = {f"{number}/{part}" for number, messages in sold(database).items() for part in range(messages)}

        def stored_messages() -> int:
            return sum(queue.messages for queue in admin.describe_topic("t").queues)

        # A transaction that ends in the commit that stages it is published by a later one.
        wait_until(lambda: stored_messages() >= len(wanted), TIMEOUT_S, what="all that is committed is published")
        stored = Counter(message.body.decode() for message in read_all(cluster.nameserver, "t"))
    assert stored == Counter(wanted)


def new_database(folder: Path) -> Path:
    database = folder / "sold.db"
    prepare(database)
    return database


@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_sellers_that_are_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    database = new_database(tmp_path)
    with LocalCluster(brokers=2, data_dir=tmp_path / "cluster", broker_options=QUICK) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        for attempt in range(ROUNDS + 2):
            with selling(cluster, database, 2 * attempt), selling(cluster, database, 2 * attempt + 1):
                more_sold(database, len(sold(database)))
                # A random moment, not a wait for something.
                time.sleep(chance.uniform(0.0, 0.05))
        verify(cluster, database)
    check_brokers(cluster)


@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_a_broker_that_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    database = new_database(tmp_path)
    with LocalCluster(brokers=1, data_dir=tmp_path / "cluster", broker_options=QUICK) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        with selling(cluster, database, 1), selling(cluster, database, 2):
            for _ in range(ROUNDS + 1):
                more_sold(database, len(sold(database)))
                time.sleep(chance.uniform(0.0, 0.05))
                broker.kill()
                broker.start()
            more_sold(database, len(sold(database)))
        verify(cluster, database)
    check_brokers(cluster)


@pytest.mark.timeout(150 + 60 * ROUNDS)
def test_a_slave_that_takes_over(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    database = new_database(tmp_path)
    with replicas(tmp_path / "cluster", **SYNCHRONOUS) as cluster:
        with selling(cluster, database, 1):
            for _ in range(ROUNDS):
                wait_in_sync(cluster, *cluster.brokers)
                more_sold(database, len(sold(database)))
                master = wait_for_master(cluster)
                [slave] = [broker for broker in cluster.brokers if broker is not master]
                slave.pause()  # it lacks what comes now, of which nothing may be acknowledged
                time.sleep(chance.uniform(0.05, 0.2))
                master.kill()
                slave.resume()
                wait_for_master(cluster, master)
                more_sold(database, len(sold(database)))
                master.start()
        verify(cluster, database)
        wait_caught_up(cluster)
    check_same(cluster)


def answering(answer: TransactionResolution, asked: list[bytes]) -> partial[TransactionResolution]:
    def answered(message: Message) -> TransactionResolution:
        asked.append(message.body)
        return answer

    return partial(answered)


def attending(broker: BrokerProcess) -> float:
    return Scrape(metrics_address(broker.log_path)).value("minimq_broker_streams", call="events")


def leave_open(cluster: LocalCluster, count: int) -> dict[int, bytes]:
    """Begin transactions whose producer vanishes; return their numbers, with their messages."""
    with TransactionalProducer(
        cluster.nameserver, group=GROUP, check=lambda _: TransactionResolution.UNKNOWN
    ) as producer:
        left = {}
        for at in range(count):
            block = producer.transaction()
            block.__enter__()
            block.send(Message("t", b"%d" % at))
            left[block.number] = b"%d" % at
    return left


def outcomes(cluster: LocalCluster, numbers: dict[int, bytes]) -> dict[bytes, TransactionResolution]:
    """Return how transactions ended, as the broker says to whoever comes with another answer."""
    found = {}
    with Admin(cluster.nameserver) as admin:
        for number, body in numbers.items():
            try:
                found[body] = admin.end_transaction(GROUP, number, TransactionResolution.COMMIT)
            except TransactionEnded:
                found[body] = admin.end_transaction(GROUP, number, TransactionResolution.ROLLBACK)
    return found


@pytest.mark.timeout(150)
@pytest.mark.parametrize("is_killed", [False, True], ids=["all run", "the master is killed"])
def test_two_members_that_answer_differently(tmp_path: Path, is_killed: bool) -> None:
    """One outcome everywhere, and forever."""
    asked: dict[TransactionResolution, list[bytes]] = {
        TransactionResolution.COMMIT: [],
        TransactionResolution.ROLLBACK: [],
    }
    options = {**SYNCHRONOUS, "metrics": "127.0.0.1:0", "log_format": "json"}
    lease_s = LEASE_S if is_killed else 15.0  # nobody shall lose it before the end
    with replicas(tmp_path / "cluster", lease_s=lease_s, **options) as cluster, Admin(cluster.nameserver) as admin:
        wait_in_sync(cluster, *cluster.brokers)
        one, other = (
            TransactionalProducer(cluster.nameserver, group=GROUP, check=answering(answer, asked[answer]))
            for answer in (TransactionResolution.COMMIT, TransactionResolution.ROLLBACK)
        )
        with one, other:
            master = wait_for_master(cluster)
            wait_until(lambda: attending(master) == 2, TIMEOUT_S, what="both attend")
            numbers = leave_open(cluster, 30)
            if is_killed:
                wait_until(lambda: all(asked.values()), TIMEOUT_S)
                master.kill()
                wait_for_master(cluster, master)
                master.start()
            wait_until(lambda: admin.list_transactions(GROUP).count == 0, TIMEOUT_S)
        ended = outcomes(cluster, numbers)
        stored = sorted(message.body for message in read_all(cluster.nameserver, "t"))
        assert stored == sorted(body for body, outcome in ended.items() if outcome is TransactionResolution.COMMIT)
        assert all(asked.values())  # both were, and both have had their way with some
        wait_in_sync(cluster, *cluster.brokers)
        fail_over(cluster)
        assert outcomes(cluster, numbers) == ended
        assert sorted(message.body for message in read_all(cluster.nameserver, "t")) == stored
    check_brokers(cluster)


def fail_over(cluster: LocalCluster) -> BrokerProcess:
    master = wait_for_master(cluster)
    master.kill()
    return wait_for_master(cluster, master)
