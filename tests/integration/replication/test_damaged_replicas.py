"""A damaged slave copies everything from its master by itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from minimq import LocalCluster, Message, Producer
from minimq.local.server_process import BrokerProcess
from minimq_broker.log.file_checksum import has_checksum
from support.checking import findings_of
from support.reading import read_all
from support.replicas import LEASE_S, TIMEOUT_S, find_master, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until

#: A segment has ten of these at most.
BODY = bytes(8000)
OPTIONS: dict[str, Any] = {"segment_bytes": 1 << 16, "upkeep_interval_s": 0.1, "verify_interval_s": 0.3}


def send(cluster: LocalCluster, count: int) -> None:
    with Producer(cluster.nameserver) as producer:
        for number in range(count):
            producer.send(Message("t", b"%4d" % number + BODY))
    wait_caught_up(cluster)


def segments(broker: BrokerProcess) -> list[Path]:
    return sorted((broker.data_dir / "commitlog").glob("*.mdb"))


def wait_sealed(*brokers: BrokerProcess) -> None:
    """Return when all sealed segments have their checksums."""
    for broker in brokers:
        wait_until(lambda broker=broker: all(map(has_checksum, segments(broker)[:-1])), TIMEOUT_S)  # type: ignore[misc]


def flip(file: Path, at: int = 0) -> None:
    """Flip a bit of a file: by default in the middle of a body."""
    data = bytearray(file.read_bytes())
    data[at or data.index(bytes(4000), len(data) // 2)] ^= 1
    file.write_bytes(data)


def log_of(broker: BrokerProcess) -> str:
    return broker.log_path.read_text()


@pytest.mark.parametrize("place", ["a body", "a page"])
def test_a_damaged_slave_of_a_running_set_becomes_whole(tmp_path: Path, place: str) -> None:
    with replicas(tmp_path, **OPTIONS) as cluster:
        master, slave = cluster.brokers
        send(cluster, 40)
        wait_sealed(master, slave)
        slave.stop()
        damaged = segments(slave)[1]
        flip(damaged, 0 if place == "a body" else 2 * 4096 + 12)  # the free space of the first page of rows
        assert any(damaged.name in finding for finding in findings_of(slave.data_dir))
        slave.start()
        wait_until(lambda: "replication: copied from=" in log_of(slave), TIMEOUT_S)
        assert "a segment is damaged" in log_of(slave)
        wait_in_sync(cluster, master, slave)
        assert len(read_all(cluster.nameserver, "t")) == 40
        assert "replication: copied from=" not in log_of(master)
    # `replicas` compares both logs, byte by byte, and verifies them


def test_a_slave_whose_segment_is_damaged_while_it_runs_becomes_whole(tmp_path: Path) -> None:
    with replicas(tmp_path, **OPTIONS) as cluster:
        master, slave = cluster.brokers
        send(cluster, 40)
        wait_sealed(master, slave)
        flip(segments(slave)[1])
        wait_until(lambda: "replication: copied from=" in log_of(slave), TIMEOUT_S)
        wait_in_sync(cluster, master, slave)


def test_a_damaged_master_is_reported_and_copies_once_it_follows(tmp_path: Path) -> None:
    with replicas(tmp_path, **OPTIONS) as cluster:
        master, slave = cluster.brokers
        send(cluster, 30)
        wait_sealed(master, slave)
        slave.stop()
        wait_in_sync(cluster, master)
        master.stop()
        flip(segments(master)[0])
        master.start()  # the last one in sync leads nevertheless
        assert wait_for_master(cluster) == master
        assert "a segment is damaged" in log_of(master)
        assert "minimq cluster promote" in log_of(master)
        slave.start()
        wait_in_sync(cluster, master, slave)
        assert "replication: copied from=" not in log_of(master)
        master.stop()
        assert wait_for_master(cluster, master) == slave
        master.start()
        wait_until(lambda: "replication: copied from=" in log_of(master), TIMEOUT_S)
        wait_in_sync(cluster, master, slave)


def test_a_damaged_slave_is_not_elected(tmp_path: Path) -> None:
    with replicas(tmp_path, **OPTIONS) as cluster:
        master, slave = cluster.brokers
        send(cluster, 30)
        wait_sealed(master, slave)
        wait_in_sync(cluster, master, slave)
        [controller] = cluster.nameservers
        controller.pause()  # so the slave stays recorded as in sync
        master.kill()
        slave.kill()
        controller.resume()
        flip(segments(slave)[0])
        slave.start()
        until = time.monotonic() + 3 * LEASE_S
        wait_until(lambda: time.monotonic() > until, what="time passes")
        assert find_master(cluster) is None
        master.start()
        assert wait_for_master(cluster) == master
        wait_in_sync(cluster, master, slave)
        assert "replication: copied from=" in log_of(slave)


def test_a_damaged_slave_keeps_its_data_while_its_master_is_damaged_too(tmp_path: Path) -> None:
    with replicas(tmp_path, **OPTIONS) as cluster:
        master, slave = cluster.brokers
        send(cluster, 30)
        wait_sealed(master, slave)
        slave.stop()
        wait_in_sync(cluster, master)  # no damaged replica is elected while another one is in sync
        master.stop()
        sound = {broker: segments(broker)[number] for number, broker in enumerate((master, slave))}
        data = {file: file.read_bytes() for file in sound.values()}
        for file in data:
            flip(file)
        master.start()
        wait_for_master(cluster)
        slave.start()
        wait_until(lambda: "of this broker is damaged" in log_of(slave), TIMEOUT_S)
        assert segments(slave)[0].exists()
        master.stop()
        sound[master].write_bytes(data[sound[master]])
        master.start()
        wait_in_sync(cluster, master, slave)
