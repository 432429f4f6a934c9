"""Real brokers whose controller is etcd."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, Message, Producer
from minimq.local.server_process import BrokerProcess
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer
from support.etcd_cluster import EtcdCluster
from support.loop_thread import LoopThread
from support.reading import read_all
from support.waiting import wait_until

TIMEOUT_S = 30.0


@pytest.fixture
def registry(loop: LoopThread) -> Iterator[NameServer]:
    with loop.serving(NameServer(NameServerOptions(listen="127.0.0.1:0", start_grace_s=0))) as server:
        yield server


@pytest.fixture
def brokers(etcd: EtcdCluster, registry: NameServer, broker_name: str, tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Two replicas that acknowledge what both of them have."""
    with contextlib.ExitStack() as stack:

        def start(replica_id: int) -> BrokerProcess:
            name = f"{broker_name}-{replica_id}"

            def flags(address: str, _first: bool) -> list[str]:
                own = [f"--name={broker_name}", f"--id={replica_id}", f"--data-dir={tmp_path / name}"]
                where = [f"--listen={address}", f"--nameserver={registry.address}", f"--controller={etcd.option}"]
                return [*own, *where, "--role=sync-master", "--term-lease=1"]

            broker = BrokerProcess(
                name, tmp_path, broker_name=broker_name, broker_id=replica_id, flags=flags, settled=lambda: None
            )
            for last in (broker.wait_stopped, broker.ask_to_stop, broker.close):  # the other way round
                stack.callback(last)
            broker.start()
            return broker

        first = start(0)
        wait_for_role(first, "master")
        yield [first, start(1)]


def wait_for_role(broker: BrokerProcess, role: str) -> None:
    wait_until(lambda: broker.current_role == role, TIMEOUT_S, what=f"{broker.name} is {role}")


def wait_for_both(master: BrokerProcess, slave: BrokerProcess) -> None:
    def is_so() -> bool:
        report = master.replication()
        return report is not None and report.role == "master" and set(report.in_sync) == {0, 1}

    wait_until(is_so, TIMEOUT_S, what=f"{master.name} leads, and {slave.name} is in sync")


@pytest.mark.fault
def test_a_killed_master_is_replaced_and_nothing_acknowledged_is_lost(
    registry: NameServer, brokers: list[BrokerProcess]
) -> None:
    master, slave = brokers
    wait_for_both(master, slave)
    with Admin(registry.address) as admin:
        admin.create_topic("t", queues=2)
    bodies = [b"%d" % number for number in range(30)]
    with Producer(registry.address) as producer:
        for number, body in enumerate(bodies):
            if number in (10, 20):
                master.kill()
                wait_for_role(slave, "master")
                master.start()
                master, slave = slave, master
                wait_for_both(master, slave)
            producer.send(Message("t", body))
    stored = [message.body for message in read_all(registry.address, "t")]
    assert sorted(stored) == sorted(bodies)
