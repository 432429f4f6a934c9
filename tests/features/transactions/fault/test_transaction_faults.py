"""Writers of transactions that are killed at any moment, and brokers with them."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from support import transaction_writer
from support.chance import SEED, rounds
from support.command import environment
from support.reading import check_brokers, read_all
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

#: How often the writer is killed.
ROUNDS = rounds(2)
TIMEOUT_S = 60.0


@pytest.mark.timeout(90 + 30 * ROUNDS)
def test_each_number_is_published_once_and_as_a_whole(tmp_path: Path) -> None:
    """A writer that is started again begins with the number of which it does not know that it was committed."""
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    progress = tmp_path / "progress"
    progress.write_text("-1")

    def committed() -> int:
        return int(progress.read_text())

    with LocalCluster(brokers=2, data_dir=tmp_path / "cluster") as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        for attempt in range(ROUNDS + 1):
            arguments = [sys.executable, transaction_writer.__file__, cluster.nameserver, "t", str(attempt)]
            before = committed()
            with subprocess.Popen([*arguments, str(progress)], env=environment()) as writer:
                try:
                    wait_until(lambda: committed() > before + 2 or writer.poll() is not None, TIMEOUT_S)  # noqa: B023
                    # A random moment, not a wait for something.
                    time.sleep(chance.uniform(0.0, 0.1))
                    assert writer.poll() is None
                    if attempt < ROUNDS and chance.random() < 0.5:
                        broker = chance.choice(cluster.brokers)
                        broker.kill()
                        if chance.random() < 0.5:  # the writer goes on, and is killed later
                            broker.start()
                            time.sleep(chance.uniform(0.0, 0.1))
                finally:
                    writer.kill()
            for broker in cluster.brokers:
                if not broker.running:
                    broker.start()
        found: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        for message in read_all(cluster.nameserver, "t"):
            written, attempt_of, at = message.body.decode().split()
            found[int(written)].append((attempt_of, int(at)))
        last = committed()
    assert set(range(last + 1)) <= set(found) <= set(range(last + 2))
    for number in range(last + 1):
        attempts = {attempt_of for attempt_of, _ in found[number]}
        assert len(attempts) == 1, f"number {number}: {found[number]}"
        assert sorted(at for _, at in found[number]) == list(range(transaction_writer.BATCHES)), found[number]
    check_brokers(cluster)
