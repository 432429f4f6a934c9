"""A broker that is killed with SIGKILL while it deletes: the log stays in one piece, and no offset is used twice."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
from minimq.admin.descriptions import BrokerReport
from minimq_common.errors import MinimqError
from support.chance import SEED, rounds
from support.reading import check_brokers
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

ROUNDS = rounds(2)
TIMEOUT_S = 40.0
QUEUES = [MessageQueue("t", "broker-a", number) for number in range(2)]


class Sender:
    """Sends to one queue in a thread until told to stop, and notes the offset of each receipt."""

    def __init__(self, nameserver: str, queue: MessageQueue) -> None:
        self.queue = queue
        self.offsets: list[int] = []
        self._nameserver = nameserver
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with Producer(self._nameserver, send_timeout_s=10.0) as producer:
            while not self._stop.is_set():
                try:
                    self.offsets.append(producer.send(Message("t", bytes(8000)), queue=self.queue).queue_offset)
                except MinimqError:
                    continue


def report_of(admin: Admin) -> BrokerReport | None:
    [status] = admin.broker_status()
    return status.report


@pytest.mark.replaced_by("machine")
@pytest.mark.timeout(120 + 15 * ROUNDS)
def test_kills_while_segments_are_deleted(tmp_path: Path) -> None:
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    options = {"segment_bytes": 1 << 16, "upkeep_interval_s": 0.02, "retention_bytes": 200_000}
    with (
        LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster,
        Admin(cluster.nameserver) as admin,
    ):
        [broker] = cluster.brokers
        admin.create_topic("t", queues=2)
        senders = [Sender(cluster.nameserver, queue) for queue in QUEUES]
        try:
            for _ in range(ROUNDS):
                wait_until(
                    lambda: (report := report_of(admin)) and report.segments_deleted > 2,
                    TIMEOUT_S,
                    what="segments were deleted",
                )
                # A random moment, not a wait for something.
                time.sleep(chance.uniform(0.0, 0.2))
                broker.kill()
                check_brokers(cluster)
                broker.start()
        finally:
            for sender in senders:
                sender.stop()
        described = {item.queue: item for item in admin.describe_topic("t").queues}
        for sender in senders:
            assert sender.offsets == sorted(set(sender.offsets))  # what was given once is never given again
            assert described[sender.queue].max_offset > sender.offsets[-1]
            assert described[sender.queue].min_offset > 0
        files = sorted((broker.data_dir / "commitlog").glob("*"))
        assert sum(file.suffix == ".mdb" for file in files) <= 8
    check_brokers(cluster)
