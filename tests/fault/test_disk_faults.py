"""Disks that fail, lie or are full, at a master and at a slave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from minimq import Admin, LocalCluster, Message, Producer
from minimq_common.errors import SendFailed
from minimq_common.wire import rpc
from support.command import Minimq
from support.disks import FailingDisk, disk_of, failing_syncs
from support.reading import read_all
from support.replicas import TIMEOUT_S, find_master, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

pytestmark = pytest.mark.fault

BODY = bytes(100_000)


class Sending:
    """Numbered messages, sent beside the block; after it all that were acknowledged are stored, once."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[bytes] = []

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        stored = [message.body for message in read_all(self._cluster.nameserver, "t")]
        assert len(stored) == len(set(stored))
        assert set(self.acknowledged) <= set(stored)

    def go_on(self) -> None:
        """Return when more is acknowledged than was handed in until now."""
        enough = len(self.acknowledged) + 10
        wait_until(lambda: len(self.acknowledged) >= enough, TIMEOUT_S, what="acknowledged messages")

    def _run(self) -> None:
        with Producer(self._cluster.nameserver, send_timeout_s=2 * TIMEOUT_S) as producer:
            number = 0
            while not self._end.is_set():
                body = b"number %d" % number
                producer.send(Message("t", body))
                self.acknowledged.append(body)
                number += 1


# ---- a disk that fails ------------------------------------------------------------------------------


@pytest.fixture
def preloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are started have syncs that can be made to fail."""
    for name, value in failing_syncs(tmp_path).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("preloaded")
def test_a_master_whose_sync_fails_does_not_try_again_and_its_slave_takes_over(tmp_path: Path) -> None:
    with replicas(tmp_path / "data", role="sync-master", min_in_sync=1) as cluster:
        master, slave = cluster.brokers
        disk = FailingDisk(master.data_dir)
        with Sending(cluster) as sending:
            sending.go_on()
            disk.fail()
            assert wait_for_master(cluster, master) is slave
            sending.go_on()
            assert disk.failures == 1  # a second one might say that all is well, though the first has lost something
            assert "stopped after an error" in master.log_path.read_text()
            disk.work()
            master.restart()
            wait_in_sync(cluster, master, slave)
            sending.go_on()
        wait_caught_up(cluster)


@pytest.mark.usefixtures("preloaded")
def test_a_slave_whose_sync_fails_is_left_out(tmp_path: Path) -> None:
    with replicas(tmp_path / "data", role="sync-master", min_in_sync=1) as cluster:
        master, slave = cluster.brokers
        disk = FailingDisk(slave.data_dir)
        with Sending(cluster) as sending:
            sending.go_on()
            disk.fail()
            wait_in_sync(cluster, master)
            sending.go_on()
            assert disk.failures == 1
            disk.work()
            slave.restart()
            wait_in_sync(cluster, master, slave)
            sending.go_on()
        assert find_master(cluster) is master
        wait_caught_up(cluster)


@pytest.mark.usefixtures("preloaded")
def test_a_lone_broker_whose_store_failed_is_not_healthy_until_it_is_restarted(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path / "data") as cluster:
        [broker] = cluster.brokers
        minimq, disk = Minimq(cluster.nameserver), FailingDisk(broker.data_dir)
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        assert health_of(broker.address) == health_pb2.HealthCheckResponse.SERVING
        [row] = minimq.json("cluster", "status")
        assert (row["state"], row["problem"]) == ("up", None)
        disk.fail()
        with Producer(cluster.nameserver, send_timeout_s=1) as producer, pytest.raises(SendFailed, match="restart"):
            producer.send(Message("t", b"x"))
        wait_until(lambda: health_of(broker.address) == health_pb2.HealthCheckResponse.NOT_SERVING, TIMEOUT_S)
        [row] = minimq.json("cluster", "status")
        assert row["problem"] == "stores nothing after a disk error: restart it"
        assert row["problem"] in minimq("cluster", "status")
        disk.work()
        broker.restart()
        wait_until(lambda: health_of(broker.address) == health_pb2.HealthCheckResponse.SERVING, TIMEOUT_S)
        [row] = minimq.json("cluster", "status")
        assert row["problem"] is None


@pytest.mark.usefixtures("preloaded")
def test_a_disk_whose_sync_hangs_is_named_everywhere(tmp_path: Path) -> None:
    options = {"metrics": "127.0.0.1:0", "log_format": "json"}
    with LocalCluster(brokers=1, data_dir=tmp_path / "data", broker_options=options) as cluster:
        [broker] = cluster.brokers
        minimq, disk = Minimq(cluster.nameserver), FailingDisk(broker.data_dir)
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        with Producer(cluster.nameserver, send_timeout_s=12) as producer:
            producer.send(Message("t", b"w"))
            disk.hang()
            with pytest.raises(SendFailed, match="its disk has not finished a sync for"):
                producer.send(Message("t", b"x"))
            assert Scrape(metrics_address(broker.log_path)).value("minimq_broker_sync_running_seconds") > 0
            [row] = minimq.json("cluster", "status")
            assert row["problem"].startswith("its disk is slow: a sync has taken")
            assert "its disk is slow" in minimq("top", "--once")
            assert "the disk is slow, senders wait for its syncs" in broker.log_path.read_text()
            assert minimq.json("peek", "t")["body"] == "w"  # it is readable while it hangs
            disk.work()
            producer.send(Message("t", b"y"))
        assert [message.body for message in read_all(cluster.nameserver, "t")][-1] == b"y"


def health_of(address: str) -> int:
    with rpc.open_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        status: int = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status
        return status


# ---- a disk that lies -------------------------------------------------------------------------------


# ---- a full disk ------------------------------------------------------------------------------------


@contextmanager
def with_small_disk(path: Path, *, of: str, **options: Any) -> Iterator[tuple[LocalCluster, Path]]:
    """A master and a slave, one of them with a disk of 24 MiB. Yields also a file on it whose removal frees 8 MiB."""
    with disk_of(path / "disk", "24m") as disk:
        (path / "data").mkdir()
        (path / "data" / of).symlink_to(disk, target_is_directory=True)
        reserve = disk / "reserve"
        reserve.write_bytes(bytes(8 << 20))
        with replicas(path / "data", role="sync-master", upkeep_interval_s=0.05, **options) as cluster:
            yield cluster, reserve


def send_until(producer: Producer, failure: str) -> int:
    """Send until that fails in this way. Returns how many messages were acknowledged."""
    acknowledged = 0

    def send_on() -> None:
        nonlocal acknowledged
        for _ in range(1000):
            producer.send(Message("t", BODY))
            acknowledged += 1

    with pytest.raises(SendFailed, match=failure):
        send_on()
    return acknowledged


def test_a_slave_whose_disk_is_full_is_left_out_until_there_is_space(tmp_path: Path) -> None:
    with with_small_disk(tmp_path, of="broker-a-1", min_in_sync=1) as (cluster, reserve):
        master, slave = cluster.brokers
        with Producer(cluster.nameserver, send_timeout_s=TIMEOUT_S) as producer:
            for _ in range(200):  # 20 MB
                producer.send(Message("t", BODY))
            wait_in_sync(cluster, master)
            producer.send(Message("t", BODY))
            reserve.unlink()
            wait_in_sync(cluster, master, slave)
            producer.send(Message("t", BODY))
        assert find_master(cluster) is master
        wait_caught_up(cluster)
        assert len(read_all(cluster.nameserver, "t")) == 202


def test_a_full_disk_of_a_slave_that_is_needed_ends_sending(tmp_path: Path) -> None:
    with with_small_disk(tmp_path, of="broker-a-1", min_in_sync=2, replica_lag_s=1.0) as (cluster, reserve):
        master, slave = cluster.brokers
        with Producer(cluster.nameserver, send_timeout_s=8.0) as producer:
            acknowledged = send_until(producer, "1 replicas of broker-a are in sync, and 2 are needed")
            reserve.unlink()
            wait_in_sync(cluster, master, slave)
            producer.send(Message("t", BODY))
        wait_caught_up(cluster)
        assert len(read_all(cluster.nameserver, "t")) >= acknowledged + 1


def test_a_master_whose_disk_is_full_rejects_messages_and_stays_the_master(tmp_path: Path) -> None:
    """It can be read, groups go on, and somebody has to make space: another master would soon be as full."""
    with with_small_disk(tmp_path, of="broker-a", min_in_sync=1) as (cluster, reserve):
        master, slave = cluster.brokers
        with Producer(cluster.nameserver, send_timeout_s=1.0) as producer:
            acknowledged = send_until(producer, "the disk of the broker is full")
            assert len(read_all(cluster.nameserver, "t")) == acknowledged
            reserve.unlink()
            producer.send(Message("t", BODY))
        assert find_master(cluster) is master
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        assert len(read_all(cluster.nameserver, "t")) == acknowledged + 1
