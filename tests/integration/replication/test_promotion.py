"""A master that is chosen by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq_common.errors import InvalidArgument, NotInSync
from support.command import Minimq
from support.reading import read_all
from support.replicas import TIMEOUT_S, find_master, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until


def test_a_replica_in_sync_is_promoted_while_messages_are_sent(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master", slaves=2) as cluster, Admin(cluster.nameserver) as admin:
        minimq = Minimq(cluster.nameserver)
        successor = cluster.brokers[1]
        with Producer(cluster.nameserver) as producer:
            futures = [producer.send_async(Message("t", b"%d" % number)) for number in range(2000)]
            [row] = minimq.json("cluster", "promote", "broker-a", "--replica", "1")
            assert re.fullmatch(r"replica 1, term \d+", row["then"])
            futures += [producer.send_async(Message("t", b"%d" % number)) for number in range(2000, 4000)]
            for future in futures:
                future.result(30)
        assert find_master(cluster) is successor
        stored = [message.body for message in read_all(cluster.nameserver, "t")]
        assert sorted(stored) == sorted(b"%d" % number for number in range(4000))
        wait_in_sync(cluster, *cluster.brokers)
        wait_registered(admin, {0: (1, "slave"), 1: (0, "master"), 2: (2, "slave")})
        rows = {row["replica"]: row for row in minimq.json("cluster", "status")}
        assert rows[1]["in_sync"] == [0, 1, 2]
        assert "In sync" in minimq("cluster", "status")
        [again] = minimq.json("cluster", "promote", "broker-a", "--replica", "1")
        assert again["now"] == again["then"] == row["then"]
        wait_caught_up(cluster)


def test_a_replica_that_is_not_in_sync_is_promoted_only_at_the_price_of_messages(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster, Admin(cluster.nameserver) as admin:
        master, slave = cluster.brokers
        wait_caught_up(cluster)
        slave.kill()
        with Producer(cluster.nameserver) as producer:
            producer.send(Message("t", b"lost"))
        wait_in_sync(cluster, master)
        master.stop()  # in good order, so that it knows later what was confirmed
        slave.start()
        wait_registered(admin, {1: (1, "slave")})
        with pytest.raises(NotInSync, match="--unclean"):
            admin.promote("broker-a", 1)
        promote = ("cluster", "promote", "broker-a", "--replica", "1", "--unclean")
        status, asked = Minimq(cluster.nameserver).on_terminal(*promote, answer=b"n\n")
        assert (status, asked.strip().endswith("Aborted!")) == (1, True)
        assert find_master(cluster) is None
        assert "ERROR" not in (said := controller_log(cluster)), said
        term = admin.promote("broker-a", 1, unclean=True)
        assert term > 1
        assert wait_for_master(cluster) is slave
        [decided] = errors_in(controller_log(cluster))
        assert re.search(r"unclean promotion.*broker=broker-a cluster=\S+ to=1 term=1 in_sync=\[0\]", decided)
        [led] = errors_in(slave.log_path.read_text())
        assert re.search(rf"unclean promotion.*broker=broker-a .*replica=1 term={term} in_sync_before=\[0\]", led)
        master.start()
        wait_in_sync(cluster, master, slave)
        [cut] = errors_in(master.log_path.read_text())
        lost = re.search(r"acknowledged messages are lost.* from=(\d+) to=(\d+) confirmed=(\d+)", cut)
        assert lost
        before, after, confirmed = map(int, lost.groups())
        assert after < confirmed <= before
        wait_caught_up(cluster)
        assert read_all(cluster.nameserver, "t") == []


def wait_registered(admin: Admin, expected: dict[int, tuple[int, str]]) -> None:
    """Return when these replicas are registered, each with its route id and role."""

    def found() -> bool:
        reports = [(status.broker_id, status.report.replication) for status in admin.broker_status() if status.report]
        return {report.replica_id: (broker_id, report.role) for broker_id, report in reports} == expected

    wait_until(found, TIMEOUT_S, what=f"registered: {expected}")


def controller_log(cluster: LocalCluster) -> str:
    [nameserver] = cluster.nameservers
    return nameserver.log_path.read_text()


def errors_in(log: str) -> list[str]:
    return [line for line in log.splitlines() if " ERROR " in line]


def test_a_promotion_without_loss_is_no_error(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master") as cluster, Admin(cluster.nameserver) as admin:
        master, slave = cluster.brokers
        wait_in_sync(cluster, master, slave)
        wait_registered(admin, {0: (0, "master"), 1: (1, "slave")})
        for _ in range(2):  # the second one changes nothing
            admin.promote("broker-a", 1)
            wait_registered(admin, {0: (1, "slave"), 1: (0, "master")})
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)
        promotions = [line for line in controller_log(cluster).splitlines() if "promotion broker=" in line]
        assert [" INFO " in line for line in promotions] == [True]
        assert errors_in(controller_log(cluster) + master.log_path.read_text() + slave.log_path.read_text()) == []


def test_what_cannot_be_promoted(tmp_path: Path) -> None:
    with replicas(tmp_path) as cluster, Admin(cluster.nameserver) as admin:
        wait_registered(admin, {0: (0, "master"), 1: (1, "slave")})
        with pytest.raises(InvalidArgument, match="no replica 7 that answers: there are 0, 1"):
            admin.promote("broker-a", 7)
        with pytest.raises(InvalidArgument, match="no broker 'broker-x': the name server knows broker-a"):
            admin.promote("broker-x", 0)
        [planned] = Minimq(cluster.nameserver).json("cluster", "promote", "broker-a", "--replica", "1", "--dry-run")
        assert (planned["what"], planned["now"], planned["then"]) == (
            "master of broker-a",
            "replica 0, term 1",
            "replica 1",
        )
