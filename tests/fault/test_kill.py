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
from minimq_common.errors import MiniMQError, SendFailed
from support.chance import SEED, rounds
from support.reading import check_brokers, read_all
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

#: Rounds of killing.
ROUNDS = rounds(2)
PATIENCE_S = 40.0


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
        self._thread.join(PATIENCE_S)
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
            receipt = future.result(PATIENCE_S)
        except MiniMQError:
            return
        assert self.acknowledged.setdefault((receipt.queue, receipt.queue_offset), body) == body


@pytest.mark.timeout(120 + 15 * ROUNDS)
def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    print(f"MINIMQ_TEST_SEED={SEED} MINIMQ_TEST_ROUNDS={ROUNDS}")
    chance = random.Random(SEED)
    bodies = count()
    acknowledged: dict[tuple[MessageQueue, int], bytes] = {}
    attempted: set[bytes] = set()
    options = {"segment_bytes": 1 << 18, "checkpoint_interval_s": 0.05}
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=3)
        for number in range(ROUNDS):
            with Producer(cluster.nameserver, send_timeout_s=10.0) as producer:
                senders = [Sender(producer, bodies, bulk=bulk) for bulk in (1, 20, 400)]
                wait_until(lambda: all(sender.acknowledged for sender in senders), PATIENCE_S)  # noqa: B023
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


def test_a_send_goes_to_another_broker_when_its_own_is_killed(tmp_path: Path) -> None:
    """Every send that is under way when a broker dies succeeds within its time."""
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        with Producer(cluster.nameserver, send_timeout_s=5.0) as producer:
            producer.send_many([Message("t", b"x")] * 10)
            receipts: list[SendReceipt] = []
            for victim in cluster.brokers:
                # A broker that has received and does not answer, and then dies: the sends are in mid-air.
                victim.pause()
                futures = [producer.send_async(Message("t", b"y")) for _ in range(200)]
                victim.kill()
                receipts += [future.result(PATIENCE_S) for future in futures]
                victim.start()
        stored = {(message.queue, message.queue_offset) for message in read_all(cluster.nameserver, "t")}
        assert {(receipt.queue, receipt.queue_offset) for receipt in receipts} <= stored
    check_brokers(cluster)


def test_a_send_to_a_chosen_queue_waits_for_its_broker(tmp_path: Path) -> None:
    """It may not go elsewhere, so it is sent again when its broker is back; the order stays."""
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        queue = MessageQueue("t", "broker-a", 0)
        with Producer(cluster.nameserver, send_timeout_s=20.0) as producer:
            producer.send(Message("t", b"0"), queue=queue)
            cluster.brokers[0].kill()
            futures = [producer.send_async(Message("t", b"%d" % number), queue=queue) for number in range(1, 50)]
            cluster.brokers[0].start()
            offsets = [future.result(PATIENCE_S).queue_offset for future in futures]
        assert offsets == sorted(offsets)
        bodies = [message.body for message in read_all(cluster.nameserver, "t")]
        assert list(dict.fromkeys(bodies)) == [b"%d" % number for number in range(50)]
    check_brokers(cluster)


def test_with_all_brokers_gone_the_error_lists_each_try(tmp_path: Path) -> None:
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        with Producer(cluster.nameserver, send_timeout_s=2.0) as producer:
            producer.send(Message("t", b"x"))
            for broker in cluster.brokers:
                broker.kill()
            began = time.monotonic()
            with pytest.raises(SendFailed) as raised:
                producer.send(Message("t", b"y"))
            assert time.monotonic() - began < 10.0
            tries = raised.value.tries
            assert len(tries) >= 2
            assert [text.split(":")[0] for text in tries] == [f"try {number + 1}" for number in range(len(tries))]
            assert all("t/broker-" in text and "failed after" in text for text in tries)
            assert all(text in str(raised.value) for text in tries)
    check_brokers(cluster)


def test_a_name_server_that_is_killed_does_not_stop_the_traffic(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        with Producer(cluster.nameserver) as producer:
            producer.send(Message("t", b"x"))
            cluster.nameservers[0].kill()
            for _ in range(20):
                producer.send(Message("t", b"x"))
            cluster.nameservers[0].start()
            assert len(read_all(cluster.nameserver, "t")) == 21
    check_brokers(cluster)
