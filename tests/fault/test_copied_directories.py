"""A copy of the data directory of a live broker, started in the same cluster, does not serve."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq.local.server_process import BrokerProcess, ServerProcess
from support.command import Minimq
from support.fake_broker import registered
from support.reading import read_all
from support.waiting import wait_until

TIMEOUT_S = 60.0

pytestmark = [pytest.mark.fault, pytest.mark.system]


@contextmanager
def copy_of(broker: BrokerProcess, data_dir: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command of a broker with another directory and port."""
    name, *own = shlex.split(broker.command_line)
    command = [str(Path(sys.executable).with_name(name)), *own, "--listen=127.0.0.1:0", f"--data-dir={data_dir}"]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def masters(nameserver: ServerProcess) -> list[str | None]:
    return [broker.master for broker in registered(nameserver.address)]


def assert_rejected(copy: subprocess.Popen[str], by: str) -> None:
    _, errors = copy.communicate(timeout=TIMEOUT_S)
    assert copy.returncode == 1
    assert f"{by} is connected and has that name and id" in errors


@pytest.mark.parametrize(
    ("nameservers", "slaves", "promoted", "same_address"),
    [(1, 0, 0, False), (2, 0, 0, False), (1, 0, 0, True), (2, 1, 0, False), (1, 1, 1, False)],
)
def test_a_copied_directory_is_rejected_while_its_broker_lives(
    tmp_path: Path, nameservers: int, slaves: int, promoted: int, same_address: bool
) -> None:
    with LocalCluster(brokers=1, nameservers=nameservers, slaves=slaves, data_dir=tmp_path / "live") as cluster:
        minimq = Minimq(cluster.nameserver)
        live = cluster.brokers[promoted]
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
            admin.create_topic("t", queues=1)
            if promoted:
                admin.promote("broker-a", promoted)
            wait_until(lambda: masters(cluster.nameservers[0]) == [live.address], TIMEOUT_S)
            producer.send(Message("t", b"before"))
            shutil.copytree(live.data_dir, tmp_path / "copy")
            flags = [f"--advertise={live.address}"] if same_address else []
            with copy_of(live, tmp_path / "copy", *flags) as copy:
                assert_rejected(copy, live.address)
            producer.send(Message("t", b"after"))
        assert f"{live.address} is connected" in minimq("cluster", "status", status=1)
        assert [each.body for each in read_all(cluster.nameserver, "t")] == [b"before", b"after"]


@pytest.mark.parametrize(("nameservers", "slaves"), [(1, 0), (2, 0), (1, 1)])
def test_a_copy_that_starts_without_name_servers_ends_when_they_return(
    tmp_path: Path, nameservers: int, slaves: int
) -> None:
    with LocalCluster(brokers=1, nameservers=nameservers, slaves=slaves, data_dir=tmp_path / "live") as cluster:
        live = cluster.brokers[0]
        shutil.copytree(live.data_dir, tmp_path / "copy")
        for nameserver in cluster.nameservers:
            nameserver.kill()
        with copy_of(live, tmp_path / "copy") as copy:
            assert copy.stdout is not None
            assert copy.stdout.readline().startswith("ready broker")
            for nameserver in cluster.nameservers:
                nameserver.start()
            assert_rejected(copy, live.address)
        wait_until(lambda: all(masters(each) == [live.address] for each in cluster.nameservers), TIMEOUT_S)


def test_a_broker_that_hangs_keeps_its_place_until_its_connection_ends(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path / "live") as cluster:
        former = cluster.brokers[0]
        shutil.copytree(former.data_dir, tmp_path / "moved")
        former.pause()
        with copy_of(former, tmp_path / "moved") as copy:
            assert_rejected(copy, former.address)
        former.kill()
        with copy_of(former, tmp_path / "moved") as moved:
            assert moved.stdout is not None
            address = moved.stdout.readline().split()[-1]
            wait_until(lambda: masters(cluster.nameservers[0]) == [address], TIMEOUT_S)
