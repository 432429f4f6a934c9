"""A replica that comes back with an old copy of its directory."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from minimq import Message, Producer
from minimq_common.errors import MinimqError
from support.reading import read_all
from support.replicas import LEASE_S, find_master, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until


def pass_time(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until, what="time passes")


@pytest.mark.parametrize("role", [pytest.param("async-master", marks=pytest.mark.long), "sync-master"])
def test_replicas_that_get_the_directory_of_each_other_do_not_start(tmp_path: Path, role: str) -> None:
    with replicas(tmp_path, role=role, min_in_sync=1) as cluster, Producer(cluster.nameserver) as producer:
        master, slave = cluster.brokers
        producer.send(Message("t", b"both"))
        wait_caught_up(cluster)
        slave.kill()
        wait_in_sync(cluster, master)
        producer.send(Message("t", b"master alone"))
        master.kill()
        swap(master.data_dir, slave.data_dir)
        for broker, other in ((master, slave), (slave, master)):
            owner = f"is the data directory of broker-a (cluster default, id {other.broker_id})"
            with pytest.raises(MinimqError, match=re.escape(owner)):
                broker.start()
        swap(master.data_dir, slave.data_dir)
        for broker in (slave, master):
            broker.start()
        assert wait_for_master(cluster) == master
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        assert {message.body for message in read_all(cluster.nameserver, "t")} == {b"both", b"master alone"}


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def test_an_old_copy_of_a_slave_of_the_same_term_is_not_elected(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster, Producer(cluster.nameserver) as producer:
        master, slave = cluster.brokers
        for number in range(10):
            producer.send(Message("t", b"%d" % number))
        wait_caught_up(cluster)
        slave.stop()
        shutil.copytree(slave.data_dir, tmp_path / "old")
        slave.start()
        wait_in_sync(cluster, master, slave)
        for number in range(10, 20):
            producer.send(Message("t", b"%d" % number))
        wait_caught_up(cluster)
        pass_time(LEASE_S)  # the master has reported since
        master.kill()
        slave.kill()
        shutil.rmtree(slave.data_dir)
        (tmp_path / "old").rename(slave.data_dir)
        slave.start()
        pass_time(3 * LEASE_S)
        assert find_master(cluster) is None
        master.start()
        assert wait_for_master(cluster) == master
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        assert len(read_all(cluster.nameserver, "t")) == 20
