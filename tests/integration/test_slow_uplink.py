"""Large messages over a slow connection: progress counts, not the time that they take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, Cluster, Message, Producer, PullConsumer, TransactionalProducer, TransactionResolution
from minimq.local.server_process import ServerProcess
from support.relay import Relay
from support.waiting import wait_until

pytestmark = pytest.mark.slow

RATE = 512 << 10
LARGE = bytes(4 << 20)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[tuple[str, Relay]]:
    """The address of a name server, and the relay in front of its broker."""
    nameserver = ServerProcess(
        "nameserver", "nameserver", tmp_path, flags=lambda address, _: [f"--listen={address}"], settled=lambda: None
    )
    flags: list[str] = []
    broker = ServerProcess("broker", "broker-a", tmp_path, flags=lambda *_: flags, settled=lambda: None)
    with Relay(broker.address) as relay:
        flags += ["--name=broker-a", f"--listen={broker.address}", f"--advertise={relay.address}"]
        flags += [f"--data-dir={broker.data_dir}", f"--nameserver={nameserver.address}"]
        try:
            nameserver.start()
            broker.start()
            with Admin(nameserver.address) as admin:
                wait_until(admin.cluster)
                admin.create_topic("t", queues=1)
            yield nameserver.address, relay
        finally:
            relay.uplink_bytes_per_s = None
            broker.stop()
            nameserver.stop()


def test_sends_that_make_progress_succeed_at_their_first_try(line: tuple[str, Relay]) -> None:
    nameserver, relay = line
    with (
        Producer(nameserver, send_timeout_s=6) as producer,
        TransactionalProducer(
            nameserver, group="g", check=lambda _: TransactionResolution.COMMIT, send_timeout_s=6
        ) as halves,
    ):
        producer.send(Message("t", b"x"))
        relay.uplink_bytes_per_s = RATE
        producer.send(Message("t", LARGE))
        producer.send_many(Message("t", bytes(1000)) for _ in range(3000))
        with producer.transaction() as transaction:
            transaction.send(Message("t", LARGE))
        with halves.transaction() as half:
            half.send(Message("t", LARGE))
        assert producer.statistics().retries == 0
        assert relay.sent < 3.2 * len(LARGE) + 3000 * 1100


def test_commits_do_not_wait_behind_bodies(line: tuple[str, Relay]) -> None:
    nameserver, relay = line
    with (
        Cluster(nameserver) as cluster,
        Producer(cluster) as producer,
        PullConsumer(cluster, group="g", auto_commit=False) as consumer,
    ):
        consumer.subscribe("t")
        producer.send(Message("t", b"x"))
        wait_until(lambda: consumer.poll(1.0))
        relay.uplink_bytes_per_s = RATE
        sending = producer.send_async(Message("t", LARGE))
        before = relay.sent
        wait_until(lambda: relay.sent > before + (256 << 10))
        consumer.commit()
        assert not sending.done()
        sending.result()
