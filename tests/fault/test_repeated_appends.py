"""Batches that are sent again after their broker was killed with SIGKILL: each is stored once."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from minimq_proto.v1 import broker_pb2
from support.chance import SEED, rounds
from support.kernel_stores import numbered_batch
from support.raw_sender import Broken, RawSender
from support.reading import check_brokers, read_all

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

#: Rounds of killing.
ROUNDS = rounds(2)
PRODUCER = 0xBEEF
BATCHES = 1500

BatchLocation = tuple[int, int]
Answers = dict[int, broker_pb2.AppendResult]


def send(address: str, numbers: list[tuple[int, int]]) -> Answers:
    """Send batches (queue, sequence) and return the answers that came, by sequence number."""
    batches = [(queue_id, numbered_batch(PRODUCER, number, b"%d" % number)) for queue_id, number in numbers]
    with RawSender(address) as sender:
        try:
            answered = dict(enumerate(sender.send("t", batches)))
        except Broken as broken:
            answered = broken.answered
    return {numbers[index][1]: result for index, result in answered.items() if not result.HasField("failure")}


def place(result: broker_pb2.AppendResult) -> BatchLocation:
    return result.queue_id, result.base_offset


def stored(cluster: LocalCluster) -> dict[BatchLocation, int]:
    return {
        (message.queue.queue_id, message.queue_offset): int(message.body)
        for message in read_all(cluster.nameserver, "t")
    }


@pytest.mark.replaced_by("machine")
def test_a_repeat_after_a_kill_is_answered_with_the_former_place(tmp_path: Path) -> None:
    """No checkpoint was saved since the batch was stored."""
    options = {"upkeep_interval_s": 3600.0}
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        first = send(broker.address, [(1, 5)])[5]
        for _ in range(2):
            broker.kill()
            broker.start()
            again = send(broker.address, [(0, 5)])[5]
            assert again.status == broker_pb2.SEND_STATUS_ALREADY_STORED
            assert (place(again), again.store_timestamp_ms) == (place(first), first.store_timestamp_ms)
        assert stored(cluster) == {(1, 0): 5}
    check_brokers(cluster)


@pytest.mark.replaced_by("machine")
@pytest.mark.timeout(120 + 15 * ROUNDS)
def test_what_is_sent_again_after_kills_is_stored_once(tmp_path: Path) -> None:
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    options = {"upkeep_interval_s": 0.05, "segment_bytes": 1 << 18}
    acknowledged: dict[int, BatchLocation] = {}
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=3)
        for _ in range(ROUNDS):
            # Two copies of everything are under way, in another order and to other queues, when the broker dies.
            with ThreadPoolExecutor(2) as threads:
                sending = [threads.submit(send, broker.address, shuffled(chance)) for _ in range(2)]
                # A random moment, not a wait for something.
                time.sleep(chance.uniform(0.0, 0.3))
                broker.kill()
            broker.start()
            for number, result in chain.from_iterable(future.result().items() for future in sending):
                assert acknowledged.setdefault(number, place(result)) == place(result)
        final = send(broker.address, shuffled(chance))
        assert {number: place(result) for number, result in final.items() if number in acknowledged} == acknowledged
        assert sorted(final) == list(range(BATCHES))
        assert stored(cluster) == {place(result): number for number, result in final.items()}
    check_brokers(cluster)


def shuffled(chance: random.Random) -> list[tuple[int, int]]:
    """Return all numbers, each with any queue, almost in order."""
    numbers = sorted(range(BATCHES), key=lambda number: number + chance.uniform(0, 50))
    return [(chance.randrange(3), number) for number in numbers]
