"""Brokers that are killed with SIGKILL at a random moment: what was acknowledged is there, where it was said."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import Future
from itertools import count
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, SendReceipt
from minimq_common.errors import MinimqError
from support.chance import SEED, rounds
from support.reading import check_brokers, read_all
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

#: Rounds of killing.
ROUNDS = rounds(2)
TIMEOUT_S = 40.0


class Sender:
    """Sends numbered bodies in a thread until told to stop, and notes each receipt."""

    def __init__(self, producer: Producer, bodies: count[int], *, bulk: int) -> None:
        self.acknowledged: dict[tuple[MessageQueue, int], bytes] = {}
        self.attempted: set[bytes] = set()
        self._producer = producer
        self._bodies = bodies
        self._bulk = bulk
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            bodies = [b"%d" % next(self._bodies) + bytes(200) for _ in range(self._bulk)]
            self.attempted.update(bodies)
            futures = [self._producer.send_async(Message("t", body)) for body in bodies]
            for body, future in zip(bodies, futures, strict=True):
                self._note(body, future)

    def _note(self, body: bytes, future: Future[SendReceipt]) -> None:
        try:
            receipt = future.result(TIMEOUT_S)
        except MinimqError:
            return
        assert self.acknowledged.setdefault((receipt.queue, receipt.queue_offset), body) == body


@pytest.mark.replaced_by("machine")
@pytest.mark.timeout(120 + 15 * ROUNDS)
def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    bodies = count()
    acknowledged: dict[tuple[MessageQueue, int], bytes] = {}
    attempted: set[bytes] = set()
    options = {"segment_bytes": 1 << 18, "upkeep_interval_s": 0.05}
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=3)
        for number in range(ROUNDS):
            with Producer(cluster.nameserver, send_timeout_s=10.0) as producer:
                senders = [Sender(producer, bodies, bulk=bulk) for bulk in (1, 20, 400)]
                wait_until(lambda: all(sender.acknowledged for sender in senders), TIMEOUT_S)  # noqa: B023
                # A random moment, not a wait for something.
                time.sleep(chance.uniform(0.0, 0.4))
                broker.kill()
                check_brokers(cluster)
                broker.start()
                for sender in senders:
                    sender.stop()
                    acknowledged.update(sender.acknowledged)
                    attempted |= sender.attempted
            stored = {
                (message.queue, message.queue_offset): message.body for message in read_all(cluster.nameserver, "t")
            }
            lost = {place: body for place, body in acknowledged.items() if stored.get(place) != body}
            assert lost == {}, f"round {number}: {len(lost)} of {len(acknowledged)} are not where the receipt says"
            assert set(stored.values()) <= attempted
    assert len(list((broker.data_dir / "commitlog").glob("*.mdb"))) > 1
    check_brokers(cluster)
