"""A damaged slave is rebuilt from its master by one command."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from minimq import LocalCluster, Message, Producer
from minimq.local.server_process import BrokerProcess
from minimq_broker.__main__ import main
from minimq_broker.log.data_dir import Owner
from minimq_common.errors import MinimqError
from support.reading import read_all
from support.replicas import replicas, wait_caught_up, wait_in_sync


def rebuild(broker: BrokerProcess, address: str, status: int = 0) -> str:
    result = CliRunner().invoke(main, ["rebuild", "--source", address, str(broker.data_dir)])
    assert result.exit_code == status, result.output
    return result.output


def damage(broker: BrokerProcess) -> None:
    """Make it impossible to open the log and the state of a broker."""
    for file in (*(broker.data_dir / "commitlog").glob("*.mdb"), broker.data_dir / "state.mdb"):
        file.write_bytes(b"\xff" * 100_000)


def test_a_slave_that_cannot_be_opened_names_the_command_that_repairs_it(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster, Producer(cluster.nameserver) as producer:
        master, slave = cluster.brokers
        producer.send(Message("t", b"before"))
        wait_caught_up(cluster)
        slave.stop()
        damage(slave)
        with pytest.raises(MinimqError, match=r"minimq-broker rebuild --source MASTER_HOST:PORT .*"):
            slave.start()
        producer.send(Message("t", b"after"))
        owner = (slave.data_dir / "owner").read_text()
        assert rebuild(slave, master.address).startswith(f"marked {slave.data_dir}: start its broker")
        assert (slave.data_dir / "owner").read_text() == owner
        slave.start()
        wait_in_sync(cluster, master, slave)
        producer.send(Message("t", b"later"))
        wait_caught_up(cluster)
        assert {message.body for message in read_all(cluster.nameserver, "t")} == {b"before", b"after", b"later"}


def test_what_must_not_be_rebuilt_is_rejected(tmp_path: Path) -> None:
    with (
        replicas(tmp_path / "cluster", slaves=2) as cluster,
        LocalCluster(brokers=1, data_dir=tmp_path / "b") as others,
    ):
        master, slave, other = cluster.brokers
        wait_in_sync(cluster, master, slave, other)
        assert f"is in use by process {slave.pid}" in rebuild(slave, master.address, status=1)
        slave.stop()
        assert "the master of broker-a, which is at " + master.address in rebuild(slave, other.address, status=1)
        assert "is not reached" in rebuild(slave, slave.address, status=1)
        owner = slave.data_dir / "owner"
        sound = owner.read_text()
        other_owner = Owner("default", "broker-b", slave.broker_id)
        owner.write_text(json.dumps({**asdict(other_owner), "crc32c": other_owner.crc32c}))
        text = f"{slave.data_dir} is the data directory of broker-b (cluster default, id {slave.broker_id}), and the "
        assert text in rebuild(slave, master.address, status=1)
        owner.write_text((master.data_dir / "owner").read_text())
        assert "which is the master of broker-a and may have data that no" in rebuild(slave, master.address, status=1)
        owner.write_text(sound)
        assert "has no replicas" in rebuild(slave, others.brokers[0].address, status=1)
        slave.start()
        wait_in_sync(cluster, master, slave, other)
