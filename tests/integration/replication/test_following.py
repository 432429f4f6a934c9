"""Slaves hold what their master holds, byte by byte, whenever they come."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq_broker.backup.check import check_directory, compare_directories
from support.reading import read_all
from support.relay import Relay
from support.replicas import TIMEOUT_S, check_same, replicas, wait_caught_up, wait_in_sync
from support.waiting import wait_until


@pytest.mark.parametrize("role", ["async-master", "sync-master"])
def test_a_slave_has_every_byte_of_its_master(tmp_path: Path, role: str) -> None:
    with replicas(tmp_path, role=role, segment_bytes=1 << 20) as cluster, Producer(cluster.nameserver) as producer:
        for number in range(50):
            producer.send(Message("t", b"%d" % number))
        for future in [producer.send_async(Message("t", b"x" * 1000)) for _ in range(5000)]:
            future.result(30)
        producer.send(Message("t", b"last"))  # in the next segment, although all before may have been one commit
        wait_caught_up(cluster)
        master, slave = (broker.replication() for broker in cluster.brokers)
        assert master is not None
        assert slave is not None
        assert (master.role, slave.role) == ("master", "slave")
        assert master.confirmed > 5_000_000
        assert len(read_all(cluster.nameserver, "t")) == 5051
    ends = [max(int(path.stem) for path in (broker.data_dir / "commitlog").glob("*.mdb")) for broker in cluster.brokers]
    assert min(ends) > 0  # several segments on both


@pytest.mark.replaced_by("contract")
def test_topics_and_what_is_done_with_them_reach_the_slave(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("other", queues=3)
        admin.delete_topic("t")
        wait_caught_up(cluster)
    # The logs are the same; and so is what they add up to, as a start of the slave alone would find.
    check_same(cluster)


@pytest.mark.replaced_by("contract")
def test_a_slave_that_was_offline_goes_on_where_it_was(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster, Producer(cluster.nameserver) as producer:
        master, slave = cluster.brokers
        producer.send(Message("t", b"before"))
        slave.kill()
        for number in range(100):
            producer.send(Message("t", b"meanwhile %d" % number))
        wait_in_sync(cluster, master)
        slave.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)


def test_a_slave_that_hangs_leaves_the_replicas_in_sync_and_comes_back(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster, Producer(cluster.nameserver) as producer:
        master, slave = cluster.brokers
        slave.pause()
        producer.send(Message("t", b"meanwhile"))
        wait_in_sync(cluster, master)
        slave.resume()
        wait_in_sync(cluster, master, slave)


def test_a_slave_whose_data_was_lost_gets_all_of_it_again(tmp_path: Path) -> None:
    with replicas(tmp_path, slaves=2) as cluster, Producer(cluster.nameserver) as producer:
        *others, slave = cluster.brokers
        for number in range(100):
            producer.send(Message("t", b"%d" % number))
        slave.stop()
        wait_in_sync(cluster, *others)
        slave.data_dir.rename(tmp_path / "lost")
        slave.start()
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)


def test_a_slave_copies_the_state_when_the_log_does_not_begin_at_its_beginning(tmp_path: Path) -> None:
    options: dict[str, Any] = {"segment_bytes": 1 << 16, "retention_bytes": 1 << 18}
    options |= {"upkeep_interval_s": 0.05}
    with replicas(tmp_path, **options) as cluster, Producer(cluster.nameserver) as producer:
        master, slave = cluster.brokers
        slave.stop()
        wait_in_sync(cluster, master)

        def log_start() -> int:
            for _ in range(20):
                producer.send(Message("t", b"x" * 10_000))
            return min(int(path.stem) for path in (master.data_dir / "commitlog").glob("*.mdb"))

        wait_until(lambda: log_start() > 0, 30, what="retention deleted something")
        slave.data_dir.rename(tmp_path / "lost")
        slave.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        assert "copied from=" in slave.log_path.read_text()
        before = slave.replication()
        slave.restart()
        wait_in_sync(cluster, master, slave)
        assert before is not None


@pytest.mark.fault
def test_a_copy_that_is_interrupted_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"segment_bytes": 1 << 20, "retention_bytes": 6 << 20, "upkeep_interval_s": 0.05}
    options |= {"upkeep_interval_s": 0.1}
    with replicas(tmp_path, **options) as cluster, Relay(cluster.brokers[0].address) as relay:
        master, slave = cluster.brokers
        slave.stop()
        wait_in_sync(cluster, master)
        master.stop()
        with monkeypatch.context() as patch:
            patch.setenv("MINIMQ_BROKER_ADVERTISE", relay.address)
            master.launch()
        master.wait_ready()
        wait_in_sync(cluster, master)

        def log_start() -> int:
            for future in [producer.send_async(Message("t", os.urandom(100_000))) for _ in range(40)]:
                future.result(30)
            return min(int(path.stem) for path in (master.data_dir / "commitlog").glob("*.mdb"))

        with Producer(cluster.nameserver, send_timeout_s=TIMEOUT_S) as producer:
            wait_until(lambda: log_start() > 0, TIMEOUT_S, what="retention deleted something")
        slave.data_dir.rename(tmp_path / "lost")
        relay.lose_answers_after(2 << 20)  # a part of the copy: it is begun, and never done
        slave.launch()
        wait_until((slave.data_dir / "copying").exists, TIMEOUT_S, what="the copy has begun")
        slave.kill()
        assert (slave.data_dir / "copying").exists()
        relay.cut()
        relay.mend()
        slave.launch()
        slave.wait_ready()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        assert "the copy of the master was interrupted" in slave.log_path.read_text()


def test_a_slave_that_hangs_costs_its_master_no_memory(tmp_path: Path) -> None:
    def memory_of(pid: int | None) -> int:
        [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon")]
        return int(line.split()[1]) << 10

    with replicas(tmp_path, role="async-master") as cluster, Producer(cluster.nameserver) as producer:
        master, slave = cluster.brokers

        def send(megabytes: int) -> None:
            for future in [producer.send_async(Message("t", os.urandom(1 << 20))) for _ in range(megabytes)]:
                future.result(30)

        send(50)
        wait_caught_up(cluster)
        before = memory_of(master.pid)
        slave.pause()
        send(150)
        assert memory_of(master.pid) - before < 75 << 20
        slave.resume()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)


@pytest.mark.parametrize("begins_late", [False, True], ids=["whole", "begin removed"])
def test_the_log_of_another_broker_is_left_alone(tmp_path: Path, *, begins_late: bool) -> None:
    options: dict[str, Any] = {"segment_bytes": 1 << 16, "retention_bytes": 1 << 18} if begins_late else {}
    options |= {"upkeep_interval_s": 0.05, "log_level": "debug"}
    with LocalCluster(brokers=1, data_dir=tmp_path / "other") as other:
        with Admin(other.nameserver) as admin, Producer(other.nameserver) as producer:
            admin.create_topic("t", queues=2)
            for number in range(100):
                producer.send(Message("t", b"of another broker %d" % number))
        foreign = other.brokers[0]
    with (
        LocalCluster(brokers=1, slaves=1, data_dir=tmp_path / "cluster", broker_options=options) as cluster,
        Producer(cluster.nameserver) as producer,
    ):
        master, slave = cluster.brokers
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        slave.stop()
        wait_in_sync(cluster, master)

        def log_start() -> int:
            producer.send(Message("t", b"x" * 10_000))
            return min(int(path.stem) for path in (master.data_dir / "commitlog").glob("*.mdb"))

        wait_until(lambda: (log_start() > 0) == begins_late, TIMEOUT_S, what="retention deleted something")
        slave.data_dir.rename(tmp_path / "own")
        shutil.copytree(foreign.data_dir, slave.data_dir)
        (slave.data_dir / "owner").unlink()
        master_log = len(master.log_path.read_text())
        slave.start()
        wait_until(
            lambda: "is not a copy of that of broker-a" in slave.log_path.read_text(), TIMEOUT_S, what="it is rejected"
        )
        tried = "slave has to copy everything id=1" if begins_late else "slave is gone id=1"
        wait_until(lambda: master.log_path.read_text()[master_log:].count(tried) > 3, TIMEOUT_S)
        assert master.log_path.read_text().count("a slave has the log of another broker id=1") == 1
        report = master.replication()
        assert report is not None
        assert report.in_sync == (0,)
        assert "replicas=[0, 1]" not in master.log_path.read_text()[master_log:]
    assert compare_directories(foreign.data_dir, slave.data_dir).difference is None
    assert check_directory(slave.data_dir).findings == []
