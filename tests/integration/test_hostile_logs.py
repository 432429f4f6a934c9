"""Texts of a client neither fill the log of a broker nor forge records in it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from minimq import LocalCluster
from minimq_proto.v1 import broker_pb2
from support.raw_member import RawMember
from support.waiting import wait_until

pytestmark = pytest.mark.system

PATIENCE_S = 20.0


def test_a_large_release_writes_little_and_holds_nobody_up(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        [broker] = cluster.brokers
        with RawMember(broker.address, "large") as member, RawMember(broker.address, "other") as other:
            queues = [broker_pb2.QueueEpoch(queue_id=-1 - number % 100) for number in range(40_000)]
            before = broker.log_path.stat().st_size
            member.say(release=broker_pb2.ReleaseQueues(group="g" * (512 << 10), queues=queues))
            began_at = time.monotonic()
            other.hears_before_heartbeat()
            member.hears_before_heartbeat()
            assert time.monotonic() - began_at < PATIENCE_S
        assert broker.log_path.stat().st_size - before < 100_000


def test_a_client_id_cannot_forge_a_record(tmp_path: Path) -> None:
    forged = "2026-03-01 09:30:00,125 ERROR   minimq_broker: all is lost"
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        [broker] = cluster.brokers
        with RawMember(broker.address, f"c1\n{forged}") as member:
            member.join("g", "t")
            member.hears_before_heartbeat()
        wait_until(lambda: "all is lost" in broker.log_path.read_text(), PATIENCE_S)
        assert not any(line.startswith(forged) for line in broker.log_path.read_text().splitlines())
