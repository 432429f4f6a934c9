"""A broker whose disk is full: it says so, loses nothing, goes on reading, and goes on writing when there is space."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
from minimq_common.errors import SendFailed
from support.reading import check_brokers, read_all

pytestmark = pytest.mark.fault


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system of 32 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"may not mount a file system: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


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
