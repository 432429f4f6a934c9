"""A broker whose disk is full: it says so, loses nothing, goes on reading, and goes on writing when there is space."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq.administration.descriptions import BrokerReport
from minimq_common.errors import SendFailed
from support.disks import disk_of
from support.reading import check_brokers, read_all
from support.waiting import wait_until

pytestmark = pytest.mark.fault


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system of 32 MiB."""
    with disk_of(tmp_path / "disk", "32m") as disk:
        yield disk


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system of 256 MiB."""
    with disk_of(tmp_path / "other-disk", "256m") as disk:
        yield disk


@pytest.mark.parametrize("segment_bytes", [1 << 30, 1 << 20], ids=["one-segment", "many-segments"])
def test_a_full_disk(small_disk: Path, segment_bytes: int) -> None:
    body = bytes(200_000)
    reserve = small_disk / "reserve"
    reserve.write_bytes(bytes(8 << 20))
    acknowledged: set[tuple[MessageQueue, int]] = set()
    options = {"segment_bytes": segment_bytes, "checkpoint_interval_s": 0.05}
    with LocalCluster(brokers=1, data_dir=small_disk / "data", broker_options=options) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        with Producer(cluster.nameserver, send_timeout_s=1.0) as producer:

            def send() -> None:
                receipt = producer.send(Message("t", body))
                acknowledged.add((receipt.queue, receipt.queue_offset))

            def send_until_it_fails() -> None:
                for _ in range(1000):
                    send()

            with pytest.raises(SendFailed, match=r"the disk of the broker is full .*: free space, then send again"):
                send_until_it_fails()
            assert len(acknowledged) > 50
            for _ in range(3):
                with pytest.raises(SendFailed, match="the disk of the broker is full"):
                    send()
            stored = {(message.queue, message.queue_offset) for message in read_all(cluster.nameserver, "t")}
            assert acknowledged == stored

            reserve.unlink()
            for _ in range(10):
                send()
            stored = {(message.queue, message.queue_offset) for message in read_all(cluster.nameserver, "t")}
            assert acknowledged == stored
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        stored = {(message.queue, message.queue_offset) for message in read_all(cluster.nameserver, "t")}
        assert acknowledged == stored
    check_brokers(cluster)


def test_a_full_disk_with_asynchronous_flush(small_disk: Path) -> None:
    """What is on its way when the disk becomes full is lost, and nothing after that."""
    acknowledged: set[tuple[MessageQueue, int]] = set()
    options = {"flush": "async", "checkpoint_interval_s": 0.05}
    with (
        LocalCluster(brokers=1, data_dir=small_disk / "data", broker_options=options) as cluster,
        Producer(cluster.nameserver, send_timeout_s=1.0) as producer,
    ):
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)

        def send_until_it_fails() -> None:
            for _ in range(1000):
                receipt = producer.send(Message("t", bytes(200_000)))
                acknowledged.add((receipt.queue, receipt.queue_offset))

        for _ in range(3):
            with pytest.raises(SendFailed, match="the disk of the broker is full"):
                send_until_it_fails()
        stored = {(message.queue, message.queue_offset) for message in read_all(cluster.nameserver, "t")}
        assert stored <= acknowledged
        assert len(stored) > 50
        assert len(acknowledged - stored) <= 1


# ---- watermarks -----------------------------------------------------------------------------------


def report_of(admin: Admin, broker_name: str = "broker-a") -> BrokerReport:
    [report] = [status.report for status in admin.broker_status() if status.broker_name == broker_name]
    assert report is not None
    return report


def test_a_nearly_full_disk_refuses_messages_and_nothing_else(small_disk: Path) -> None:
    reserve = small_disk / "reserve"
    reserve.write_bytes(bytes(8 << 20))
    options = {"disk_warn": 0.5, "disk_refuse": 0.8, "checkpoint_interval_s": 0.05, "retention_check_s": 0.05}
    with (
        LocalCluster(brokers=1, data_dir=small_disk / "data", broker_options=options) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver, send_timeout_s=1.0) as producer,
    ):
        admin.create_topic("t", queues=1)
        queue = MessageQueue("t", "broker-a", 0)
        assert report_of(admin).disk_level == "normal"
        sent = 0

        def send_until_it_fails() -> None:
            nonlocal sent
            for _ in range(1000):
                producer.send(Message("t", bytes(200_000)))
                sent += 1

        with pytest.raises(SendFailed, match=r"the disk of the broker is 8\d\.\d% full.*--disk-refuse"):
            send_until_it_fails()
        report = report_of(admin)
        assert report.disk_level == "refuse"
        assert 0.8 <= report.disk_used < 0.9
        # Nothing of a message that is refused is written.
        with pytest.raises(SendFailed, match="--disk-refuse"):
            producer.send(Message("t", bytes(200_000)))
        assert report_of(admin).log_end == report.log_end
        assert len(read_all(cluster.nameserver, "t")) == sent
        # What is small and needed is taken all the same: offsets, topics.
        with PullConsumer(cluster.nameserver, group="g") as consumer:
            consumer.assign([queue])
            consumer.commit({queue: 7})
        assert admin.describe_group("g").queues[0].committed_offset == 7
        admin.create_topic("other", queues=1)

        reserve.unlink()
        producer.send(Message("t", bytes(200_000)))
        assert wait_until(lambda: report_of(admin).disk_level == "warn", 20.0)
    check_brokers(cluster)


def test_a_disk_that_fills_up_loses_its_oldest_messages_early(small_disk: Path) -> None:
    options = {
        "segment_bytes": 1 << 20,
        "disk_warn": 0.3,
        "disk_delete_early": 0.5,
        "disk_refuse": 0.9,
        "checkpoint_interval_s": 0.02,
        "retention_check_s": 3600.0,  # the fullness itself wakes it
    }
    with (
        LocalCluster(brokers=1, data_dir=small_disk / "data", broker_options=options) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver, send_timeout_s=10.0) as producer,
    ):
        admin.create_topic("t", queues=1)
        for _ in range(400):  # 80 MB
            producer.send(Message("t", bytes(200_000)))
        report = report_of(admin)
        assert report.segments_deleted > 20
        assert report.disk_used < 0.9
        [queue] = admin.describe_topic("t").queues
        assert 0 < queue.min_offset < queue.max_offset == 400
    check_brokers(cluster)


def test_what_a_full_broker_refuses_goes_to_another(small_disk: Path, other_disk: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "broker-a").symlink_to(small_disk)
    (data / "broker-b").symlink_to(other_disk)
    options = {"disk_warn": 0.3, "disk_refuse": 0.5}
    with (
        LocalCluster(brokers=2, data_dir=data, broker_options=options) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver) as producer,
    ):
        admin.create_topic("t", queues=1)
        receipts = [producer.send(Message("t", bytes(200_000))) for _ in range(200)]
        assert {receipt.queue.broker_name for receipt in receipts} == {"broker-a", "broker-b"}
        assert {receipt.queue.broker_name for receipt in receipts[-20:]} == {"broker-b"}
        assert report_of(admin).disk_level == "refuse"
        assert len(read_all(cluster.nameserver, "t")) == 200
    check_brokers(cluster)
