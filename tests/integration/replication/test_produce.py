"""The command `minimq produce` while nobody leads."""

from __future__ import annotations

from pathlib import Path

from minimq import Admin
from support.command import Minimq
from support.reading import read_all
from support.replicas import replicas
from support.waiting import wait_until


def test_lines_that_come_while_there_is_no_master_wait_for_one(tmp_path: Path) -> None:
    with replicas(tmp_path, lease_s=3.0, role="sync-master", min_in_sync=1) as cluster:
        with Admin(cluster.nameserver) as admin:
            cluster.brokers[0].kill()
            wait_until(lambda: admin.route("t").master_of("broker-a") is None, 10)
        told = Minimq(cluster.nameserver)("produce", "t", stdin=b"one\ntwo\n")
        assert told.startswith("sent 2 messages")
        assert sorted(message.body for message in read_all(cluster.nameserver, "t")) == [b"one", b"two"]
        cluster.brokers[0].start()
