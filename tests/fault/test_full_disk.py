"""A broker whose disk is full: it says so, loses nothing, goes on reading, and goes on writing when there is space."""

from __future__ import annotations

import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq.admin.descriptions import BrokerReport
from minimq.local.server_process import BrokerProcess
from minimq_common.errors import SendFailed
from support.command import Minimq
from support.crowd import PREFACE
from support.disks import disk_of, fill_up
from support.reading import check_brokers, read_all
from support.replicas import TIMEOUT_S
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
    options = {"segment_bytes": segment_bytes, "upkeep_interval_s": 0.05}
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

            with pytest.raises(SendFailed, match=r"the disk of the broker is full .*: free space"):
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


@pytest.mark.parametrize(
    ("limit", "value", "text"),
    [
        (resource.RLIMIT_FSIZE, 1 << 20, "has reached the file-size limit .*raise it"),
        (resource.RLIMIT_NOFILE, 8, "has reached its limit of open files .*raise it"),
    ],
    ids=["file-size", "open-files"],
)
def test_a_store_continues_once_a_limit_of_the_system_is_raised(
    tmp_path: Path, limit: int, value: int, text: str
) -> None:
    options = {"segment_bytes": 2 << 20, "upkeep_interval_s": 0.05}
    with LocalCluster(brokers=1, data_dir=tmp_path / "data", broker_options=options) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver, send_timeout_s=1.0) as producer:
            admin.create_topic("t", queues=1)
            producer.send(Message("t", b"first"))
            assert broker.pid is not None
            before = resource.prlimit(broker.pid, limit)
            resource.prlimit(broker.pid, limit, (value, before[1]))

            def send_until_rejected() -> None:
                for _ in range(100):
                    producer.send(Message("t", bytes(100_000)))

            with pytest.raises(SendFailed, match=text):
                send_until_rejected()
            resource.prlimit(broker.pid, limit, before)
            receipt = producer.send(Message("t", b"last"))
            assert receipt.queue_offset + 1 == len(read_all(cluster.nameserver, "t"))
    check_brokers(cluster)


def test_connections_leave_open_files_for_the_store(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path / "data", broker_options={"segment_bytes": 1 << 20}) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        broker.stop()
        with limited(broker, "ulimit -n 128") as log, ExitStack() as opened:
            with Producer(cluster.nameserver) as producer:
                producer.send(Message("t", b"first"))
                host, _, port = broker.address.rpartition(":")
                for _ in range(160):
                    idle = opened.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_S))
                    idle.send(PREFACE)
                for _ in range(50):  # five segments
                    producer.send(Message("t", bytes(100_000)))
            assert "accepts fewer connections" in log.read_text()
        broker.start()
    check_brokers(cluster)


@contextmanager
def limited(broker: BrokerProcess, limit: str) -> Iterator[Path]:
    """Run a stopped broker under a limit of the shell; yields its log."""
    log = Path(f"{broker.log_path}.limited")
    _, *command = shlex.split(broker.command_line)
    program = f'{limit}; exec "$@"'
    with (
        log.open("w") as errors,
        subprocess.Popen(
            ["sh", "-c", program, "sh", sys.executable, "-m", "minimq_broker", *command],
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield log
        finally:
            process.terminate()


# ---- not one page is free -------------------------------------------------------------------------


@pytest.fixture
def own_disk(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A data directory for a cluster, and the file system of 8 MiB on which its first broker has its files."""
    with disk_of(tmp_path / "disk", "8m") as disk:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "broker-a").symlink_to(disk, target_is_directory=True)
        yield tmp_path / "data", disk


def send_until_rejected(producer: Producer, body: bytes) -> int:
    """Send until the disk is full. Returns how many messages were acknowledged."""
    sent = 0

    def send_on() -> None:
        nonlocal sent
        for _ in range(1000):
            producer.send(Message("t", body))
            sent += 1

    with pytest.raises(SendFailed, match="the disk of the broker is full"):
        send_on()
    return sent


@pytest.mark.parametrize("free_pages", [0, 2, 4])
def test_a_segment_is_full_and_so_is_the_disk(own_disk: tuple[Path, Path], free_pages: int) -> None:
    """The broker goes on, can be started anew, and takes messages as soon as there is space."""
    data, disk = own_disk
    body = bytes(9_000)
    options = {"segment_bytes": 1 << 16, "upkeep_interval_s": 3600.0}
    with LocalCluster(brokers=1, data_dir=data, broker_options=options) as cluster:
        [broker] = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        with Producer(cluster.nameserver, send_timeout_s=1.0) as producer:
            sent = 6  # the next one does not fit into the segment
            for _ in range(sent):
                producer.send(Message("t", body))
            reserve = fill_up(disk, free_pages)
            sent += send_until_rejected(producer, body)
            assert len(read_all(cluster.nameserver, "t")) == sent
            broker.kill()
            broker.start()
            assert len(read_all(cluster.nameserver, "t")) == sent
            sent += send_until_rejected(producer, body)
            reserve.unlink()
            for _ in range(10):
                producer.send(Message("t", body))
        assert len(read_all(cluster.nameserver, "t")) == sent + 10
    check_brokers(cluster)


# ---- watermarks -----------------------------------------------------------------------------------


def report_of(admin: Admin, broker_name: str = "broker-a") -> BrokerReport:
    [report] = [status.report for status in admin.broker_status() if status.broker_name == broker_name]
    assert report is not None
    return report


def test_a_nearly_full_disk_rejects_messages_and_nothing_else(small_disk: Path) -> None:
    reserve = small_disk / "reserve"
    reserve.write_bytes(bytes(8 << 20))
    options = {"disk_reject": 0.8, "upkeep_interval_s": 0.05}
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

        with pytest.raises(SendFailed, match=r"the disk of the broker is 8\d\.\d% full.*--disk-reject"):
            send_until_it_fails()
        report = report_of(admin)
        assert report.disk_level == "reject"
        assert 0.8 <= report.disk_used < 0.9
        assert re.findall(r"store: disk used=.* level=(.*)", cluster.brokers[0].log_path.read_text()) == [
            "warn",
            "reject",
        ]
        # Nothing of a message that is rejected is written.
        with pytest.raises(SendFailed, match="--disk-reject"):
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
        assert wait_until(lambda: report_of(admin).disk_level == "normal", 20.0)
    check_brokers(cluster)


def test_a_disk_that_fills_up_loses_its_oldest_messages_early(small_disk: Path) -> None:
    options = {"segment_bytes": 1 << 20, "disk_delete_early": 0.5, "disk_reject": 0.9, "upkeep_interval_s": 1.0}
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


def test_a_disk_that_others_fill_does_not_cost_all_messages(small_disk: Path) -> None:
    """The broker gives what it has once, says so, and nothing more when others take that as well."""
    options = {"segment_bytes": 1 << 20, "disk_delete_early": 0.5, "disk_reject": 0.95, "upkeep_interval_s": 0.02}
    with (
        LocalCluster(brokers=1, data_dir=small_disk / "data", broker_options=options) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver, send_timeout_s=10.0) as producer,
    ):
        admin.create_topic("t", queues=1)
        admin.reset_offset("g", "t")
        for _ in range(50):  # 10 MB
            producer.send(Message("t", bytes(200_000)))
        room = int(16.5 * (1 << 20)) - shutil.disk_usage(small_disk).used
        (small_disk / "others").write_bytes(bytes(max(room, 1 << 20)))
        wait_until(lambda: report_of(admin).bytes_deleted_early, TIMEOUT_S)
        wait_until(lambda: report_of(admin).disk_level == "warn", TIMEOUT_S)
        deleted = report_of(admin).segments_deleted
        with (small_disk / "others").open("ab") as others:
            others.write(bytes(4 << 20))
        wait_until(lambda: report_of(admin).disk_filled_by_others, TIMEOUT_S)
        assert report_of(admin).segments_deleted == deleted < 6
        [queue] = admin.describe_group("g").queues
        assert 0 < queue.lost < 40
        run = Minimq(cluster.nameserver)
        [status] = run.json("cluster", "status")
        assert "MiB of messages before their time" in status["problem"]
        assert "other files fill its disk" in status["problem"]
        assert "MiB deleted before their time" in run.with_stderr("group", "describe", "g")
        assert f"{queue.lost} offsets of its topics were deleted before" in run.with_stderr("group", "describe", "g")
        log = cluster.brokers[0].log_path.read_text()
        assert re.search(r"WARNING .*retention: deleted segment=\d+ .*reason=disk", log)
        assert len(re.findall(r"WARNING .*retention: deletes nothing early", log)) == 1
    check_brokers(cluster)


def test_what_a_full_broker_rejects_goes_to_another(small_disk: Path, other_disk: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "broker-a").symlink_to(small_disk)
    (data / "broker-b").symlink_to(other_disk)
    options = {"disk_reject": 0.5}
    with (
        LocalCluster(brokers=2, data_dir=data, broker_options=options) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver) as producer,
    ):
        admin.create_topic("t", queues=1)
        receipts = [producer.send(Message("t", bytes(200_000))) for _ in range(200)]
        assert {receipt.queue.broker_name for receipt in receipts} == {"broker-a", "broker-b"}
        assert {receipt.queue.broker_name for receipt in receipts[-20:]} == {"broker-b"}
        assert report_of(admin).disk_level == "reject"
        assert len(read_all(cluster.nameserver, "t")) == 200
    check_brokers(cluster)
