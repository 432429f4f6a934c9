"""Brokers that are killed with SIGKILL within transactions: what is staged stays, what is decided is published once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from minimq.local.server_process import BrokerProcess
from minimq_common.errors import MinimqError
from support.chance import SEED, rounds
from support.kernel_stores import numbered_batch
from support.raw_transactions import RawTransactions, decision
from support.reading import check_brokers, read_all
from support.replicas import replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

#: Rounds of killing.
ROUNDS = rounds(2)
TIMEOUT_S = 40.0
#: So many large batches are published in several parts.
BATCHES, LARGE = 40, 1 << 20


def stage(broker: BrokerProcess, number: int, size: int) -> list[bytes]:
    """Stage a transaction, and return its bodies."""
    bodies = [b"%d/%d " % (number, sequence) + bytes(size) for sequence in range(BATCHES)]
    with RawTransactions(broker.address) as transactions:
        for sequence, body in enumerate(bodies):
            [answer] = transactions.stage(number, [(sequence % 2, numbered_batch(number + 1, sequence, body))])
            assert not answer.HasField("failure"), answer
    return bodies


def kill_within_commit(broker: BrokerProcess, number: int, chance: random.Random) -> None:
    """Kill a broker at a random moment after a transaction is decided."""
    with RawTransactions(broker.address) as transactions:
        answer = transactions.begin_commit(decision(number, {broker.broker_name: {number + 1: range(BATCHES)}}))
        wait_until(lambda: transactions.describe().decision.number == number and transactions.is_decided(), TIMEOUT_S)
        # A random moment, not a wait for something.
        time.sleep(chance.uniform(0.0, 0.1))
        broker.kill()
        try:
            answer()
        except MinimqError:
            return


def wait_published(broker: BrokerProcess) -> None:
    """Return when nothing is left to publish; nobody asks for it."""
    with RawTransactions(broker.address) as transactions:
        wait_until(lambda: not transactions.describe().staged_batches, TIMEOUT_S, what="all is published")


def short(bodies: list[bytes]) -> list[bytes]:
    return sorted(body[:10] for body in bodies)


@pytest.mark.replaced_by("machine")
def test_what_is_staged_survives_and_is_not_seen(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options={"upkeep_interval_s": 0.05}) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        bodies = stage(broker, 0, 100)
        broker.kill()
        check_brokers(cluster)
        broker.start()
        assert read_all(cluster.nameserver, "t") == []
        with RawTransactions(broker.address) as transactions:
            assert transactions.describe().staged_batches == BATCHES
            transactions.commit(decision(0, {broker.broker_name: {1: range(BATCHES)}}))
        assert short([message.body for message in read_all(cluster.nameserver, "t")]) == short(bodies)
    check_brokers(cluster)


@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_a_broker_goes_on_by_itself_with_what_is_decided(tmp_path: Path) -> None:
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    options = {"upkeep_interval_s": 0.05, "segment_bytes": 8 << 20}
    expected: list[bytes] = []
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        for number in range(ROUNDS):
            expected += stage(broker, number, LARGE)
            kill_within_commit(broker, number, chance)
            check_brokers(cluster)
            broker.start()
            wait_published(broker)
            assert short([message.body for message in read_all(cluster.nameserver, "t")]) == short(expected)
    check_brokers(cluster)


@pytest.mark.timeout(180)
def test_the_next_master_publishes_the_rest(tmp_path: Path) -> None:
    print(f"MINIMQ_TEST_SEED={SEED}")
    chance = random.Random(SEED)
    with replicas(tmp_path, slaves=2, role="sync-master", segment_bytes=8 << 20) as cluster:
        wait_in_sync(cluster, *cluster.brokers)
        master = wait_for_master(cluster)
        bodies = stage(master, 0, LARGE)
        kill_within_commit(master, 0, chance)
        wait_published(wait_for_master(cluster, master))
        assert short([message.body for message in read_all(cluster.nameserver, "t")]) == short(bodies)
        master.start()
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)
