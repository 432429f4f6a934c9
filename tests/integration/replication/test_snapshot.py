"""A copy of a running broker, which another one can be started with."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from minimq import LocalCluster, Message, Producer
from minimq_broker.__main__ import main
from minimq_broker.backup.check import check_directory, compare_directories
from support.command import Minimq
from support.reading import read_all
from support.replicas import TIMEOUT_S, replicas, wait_caught_up
from support.waiting import wait_until


def snapshot(address: str, directory: Path, status: int = 0) -> str:
    result = CliRunner().invoke(main, ["snapshot", "--source", address, str(directory)])
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.parametrize("replica", [0, 1])
def test_a_broker_is_copied_while_it_is_written_to(tmp_path: Path, replica: int) -> None:
    copy = tmp_path / "copy" / "broker-a"
    before, ended = [b"%d" % number for number in range(500)], threading.Event()

    def go_on(producer: Producer) -> None:
        while not ended.is_set():
            producer.send(Message("t", b"later"))

    with replicas(tmp_path / "cluster", upkeep_interval_s=0.1) as cluster:
        with Producer(cluster.nameserver) as producer:
            for future in [producer.send_async(Message("t", body)) for body in before]:
                future.result(20)
            wait_caught_up(cluster)
            thread = threading.Thread(target=go_on, args=(producer,))
            thread.start()
            try:
                assert "copied positions 0 to " in snapshot(cluster.brokers[replica].address, copy)
            finally:
                ended.set()
                thread.join()
        wait_caught_up(cluster)
    original = cluster.brokers[replica].data_dir
    assert check_directory(copy).findings == []
    comparison = compare_directories(copy, original)
    assert comparison.difference is None
    assert comparison.entries > 2
    assert comparison.ahead < 0
    assert comparison.summary.endswith(f"; the second log is {-comparison.ahead} bytes longer")
    with LocalCluster(brokers=1, data_dir=copy.parent) as restored:
        assert set(before) <= {message.body for message in read_all(restored.nameserver, "t")}


def test_a_backup_is_restored_on_all_replicas(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with replicas(tmp_path / "cluster") as cluster, Producer(cluster.nameserver) as producer:
        minimq = Minimq(cluster.nameserver)
        master, slave = cluster.brokers
        producer.send(Message("t", b"kept"))
        wait_caught_up(cluster)
        snapshot(slave.address, copy)
        producer.send(Message("t", b"lost"))
        for broker in cluster.brokers:
            broker.stop()
        address = f"--nameserver={cluster.nameserver}", f"--controller={cluster.nameserver}", "--listen=127.0.0.1:0"
        command = [sys.executable, "-m", "minimq_broker", "--name=broker-a", "--id=3", f"--data-dir={copy}", *address]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as restored:
            try:
                assert restored.stdout is not None
                assert restored.stdout.readline().startswith(b"ready ")
                wait_until(lambda: [row["replica"] for row in minimq.json("cluster", "status")] == [3], TIMEOUT_S)
                assert "replica 3, term 3" in minimq(
                    "cluster", "promote", "broker-a", "--replica", "3", "--unclean", "--yes"
                )
                for broker in cluster.brokers:
                    shutil.rmtree(broker.data_dir)
                    broker.start()
                wait_until(lambda: master.in_sync and slave.in_sync, TIMEOUT_S)
                assert [message.body for message in read_all(cluster.nameserver, "t")] == [b"kept"]
            finally:
                restored.terminate()


def test_a_copy_goes_into_no_directory_that_holds_something(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path / "cluster") as cluster:
        copy = tmp_path / "copy"
        address = cluster.brokers[0].address
        snapshot(address, copy)
        assert f"{copy} holds " in snapshot(address, copy, status=1)
        original = cluster.brokers[0].data_dir
        assert f"{original} holds " in snapshot(address, original, status=1)
        (tmp_path / "file").touch()
        assert "cannot be written: [Errno 20] Not a directory" in snapshot(address, tmp_path / "file", status=1)
    assert "is not reached" in snapshot(address, tmp_path / "other", status=1)
