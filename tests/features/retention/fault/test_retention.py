"""Retention of a broker with slaves: each replica deletes by itself, and none what a slave in sync still needs."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq.local.server_process import BrokerProcess
from minimq_common.names import dead_letter_topic
from support.reading import read_all
from support.replicas import TIMEOUT_S, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until

DEAD = dead_letter_topic("g")
OPTIONS: dict[str, Any] = {"segment_bytes": 1 << 16, "upkeep_interval_s": 0.05, "retention_bytes": 300_000}


def size_of(broker: BrokerProcess) -> int:
    size = 0
    for file in (broker.data_dir / "commitlog").glob("*.mdb"):
        with contextlib.suppress(FileNotFoundError):  # it was deleted this moment
            size += file.stat().st_size
    return size


def starts_of(broker: BrokerProcess) -> list[int]:
    return sorted(int(file.stem) for file in (broker.data_dir / "commitlog").glob("*.mdb"))


def send(cluster: LocalCluster, count: int) -> None:
    with Producer(cluster.nameserver) as producer:
        for _ in range(count):
            producer.send(Message("t", bytes(8000)))


@pytest.mark.replaced_by("machine")
def test_both_replicas_delete_and_a_new_master_knows_where_queues_end(tmp_path: Path) -> None:
    with replicas(tmp_path, **OPTIONS) as cluster, Admin(cluster.nameserver) as admin:
        master = wait_for_master(cluster)
        wait_in_sync(cluster, *cluster.brokers)
        send(cluster, 100)
        wait_caught_up(cluster)
        for broker in cluster.brokers:
            wait_until(lambda: size_of(broker) <= 300_000, TIMEOUT_S, what=f"{broker} has deleted")  # noqa: B023
            assert starts_of(broker)[0] > 0
        ends = [queue.max_offset for queue in admin.describe_topic("t").queues]
        assert sum(ends) == 100
        master.kill()
        wait_for_master(cluster, master)
        wait_until(lambda: [queue.max_offset for queue in admin.describe_topic("t").queues] == ends, TIMEOUT_S)
        master.start()
        wait_caught_up(cluster)


def test_what_a_slave_in_sync_needs_stays(tmp_path: Path) -> None:
    """A slave that hangs counts as in sync for a while: an asynchronous master goes on, and keeps the log for it."""
    with replicas(tmp_path, replica_lag_s=3600.0, **OPTIONS) as cluster:
        master = wait_for_master(cluster)
        [slave] = [broker for broker in cluster.brokers if broker is not master]
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)
        slave.pause()
        before = starts_of(master)
        send(cluster, 100)
        assert size_of(master) > 600_000
        assert starts_of(master)[0] == before[0]
        slave.resume()
        wait_caught_up(cluster)
        wait_until(lambda: size_of(master) <= 300_000, TIMEOUT_S, what="the master has deleted")


def test_a_new_slave_gets_the_dead_letters_whose_segments_are_gone(tmp_path: Path) -> None:
    options = {**OPTIONS, "retention_bytes": 100_000}
    with replicas(tmp_path, **options) as cluster, Admin(cluster.nameserver) as admin:
        master = wait_for_master(cluster)
        [slave] = [broker for broker in cluster.brokers if broker is not master]
        admin.create_topic(DEAD, queues=1)
        with Producer(cluster.nameserver) as producer:
            for number in range(5):
                producer.send(Message(DEAD, b"%d" % number))
        send(cluster, 60)
        wait_caught_up(cluster)
        wait_until(lambda: starts_of(master)[1] > 100_000, TIMEOUT_S, what="it has deleted all around them")
        slave.stop()
        shutil.rmtree(slave.data_dir)
        slave.start()
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)
        master.kill()
        assert wait_for_master(cluster, master) is slave
        assert [message.body for message in read_all(cluster.nameserver, DEAD)] == [b"0", b"1", b"2", b"3", b"4"]
        master.start()
        wait_caught_up(cluster)
