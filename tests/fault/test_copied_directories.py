"""A copy of the data directory of a live broker, started in the same cluster, does not serve."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq.local.server_process import BrokerProcess
from support.command import Minimq
from support.reading import read_all
from support.waiting import wait_until

PATIENCE_S = 60.0

pytestmark = [pytest.mark.fault, pytest.mark.system]


def command_at(broker: BrokerProcess, data_dir: Path) -> list[str]:
    """Return the command of a broker with another directory and address."""
    name, *flags = shlex.split(broker.command_line)
    return [str(Path(sys.executable).with_name(name)), *flags, "--listen=127.0.0.1:0", f"--data-dir={data_dir}"]


@pytest.mark.parametrize(("nameservers", "slaves"), [(1, 0), (2, 0), (2, 1)])
def test_a_copied_directory_is_refused_while_its_broker_lives(tmp_path: Path, nameservers: int, slaves: int) -> None:
    with LocalCluster(brokers=1, nameservers=nameservers, slaves=slaves, data_dir=tmp_path / "live") as cluster:
        live, minimq = cluster.brokers[0], Minimq(cluster.nameserver)
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
            admin.create_topic("t", queues=1)
            producer.send(Message("t", b"before"))
            shutil.copytree(live.data_dir, tmp_path / "copy")
            command = command_at(live, tmp_path / "copy")
            copy = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            assert (copy.returncode, copy.stdout) == (1, "")
            assert f"{live.address} is alive and has that name and id" in copy.stderr
            producer.send(Message("t", b"after"))
        assert f"{live.address} is alive" in minimq("cluster", "status", status=1)
        assert [each.body for each in read_all(cluster.nameserver, "t")] == [b"before", b"after"]


def test_a_broker_that_hangs_is_replaced_at_its_new_address(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path / "live") as cluster:
        former = cluster.brokers[0]
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
            shutil.copytree(former.data_dir, tmp_path / "moved")
            former.pause()
            command = command_at(former, tmp_path / "moved")
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as moved:
                try:
                    assert moved.stdout is not None
                    address = moved.stdout.readline().split()[-1]
                    what = "the broker has its place at the new address"
                    wait_until(lambda: admin.route("t").master_of("broker-a") == address, PATIENCE_S, what=what)
                finally:
                    moved.terminate()
                    moved.wait(PATIENCE_S)
                    former.resume()
