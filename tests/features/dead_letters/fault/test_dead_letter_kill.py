"""A broker that is killed with SIGKILL while its retention deletes: no dead letter is lost, and none is there twice."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq_common.names import dead_letter_topic
from support.reading import check_brokers, read_all
from support.waiting import wait_until

pytestmark = pytest.mark.fault

ROUNDS = int(os.environ.get("MINIMQ_TEST_ROUNDS", "2"))
#: Repeats the moments of an earlier run.
SEED = int(os.environ.get("MINIMQ_TEST_SEED", "11"))
TIMEOUT_S = 40.0
DEAD = dead_letter_topic("g")
OPTIONS = {"segment_bytes": 1 << 16, "upkeep_interval_s": 0.02, "retention_bytes": 200_000}


@pytest.mark.timeout(120 + 15 * ROUNDS)
def test_kills_while_what_is_around_dead_letters_is_deleted(tmp_path: Path) -> None:
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    sent: list[bytes] = []
    with (
        LocalCluster(brokers=1, data_dir=tmp_path, broker_options=OPTIONS) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver, send_timeout_s=20.0) as producer,
    ):
        [broker] = cluster.brokers
        admin.create_topic("t", queues=1)
        admin.create_topic(DEAD, queues=1)
        for _ in range(ROUNDS):
            for _ in range(30):
                sent.append(b"%d" % len(sent))
                producer.send(Message(DEAD, sent[-1]))
                producer.send(Message("t", bytes(8000)))
            time.sleep(chance.uniform(0.0, 0.05))  # a random moment, not a wait for something
            broker.kill()
            check_brokers(cluster)
            broker.start()
        wait_until(lambda: admin.describe_topic("t").queues[0].min_offset > 0, TIMEOUT_S, what="something is deleted")
        assert [message.body for message in read_all(cluster.nameserver, DEAD)] == sent
    check_brokers(cluster)
