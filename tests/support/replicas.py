"""A broker with slaves, as tests look at it and disturb it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minimq import Admin, LocalCluster, MessageQueue
from minimq.local.server_process import BrokerProcess
from minimq_broker.backup.check import check_directory, compare_directories
from support.waiting import wait_until

TIMEOUT_S = 60.0
#: A lease as short as a loaded machine allows.
LEASE_S = 3.0


@contextmanager
def replicas(
    path: Path,
    slaves: int = 1,
    *,
    lease_s: float = LEASE_S,
    brokers: int = 1,
    nameservers: int = 1,
    **broker_options: Any,
) -> Iterator[LocalCluster]:
    """A cluster whose brokers have slaves, with the topic "t"; all logs are compared at the end."""
    with LocalCluster(
        brokers=brokers,
        slaves=slaves,
        data_dir=path,
        nameservers=nameservers,
        broker_options=broker_options,
        nameserver_options={"term_lease_s": lease_s},
    ) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        yield cluster
        for broker in cluster.brokers:
            broker.resume()
    check_same(cluster)


def check_same(cluster: LocalCluster) -> None:
    """Verify the stores of a cluster that has ended, and that replicas hold the same."""
    for broker in cluster.brokers:
        findings = check_directory(broker.data_dir).findings
        assert findings == [], (broker, findings)
    for one, other in itertools.combinations(cluster.brokers, 2):
        if one.broker_name == other.broker_name:
            comparison = compare_directories(one.data_dir, other.data_dir)
            assert comparison.difference is None, (one, other, comparison)


def find_master(cluster: LocalCluster, *others: BrokerProcess) -> BrokerProcess | None:
    """Return who leads now, unless it is one of these."""
    leading = {
        broker: report.term
        for broker in cluster.brokers
        if (report := broker.replication()) is not None and report.role == "master"
    }
    latest = max(leading, key=leading.__getitem__, default=None)
    return None if latest in others else latest


def wait_for_master(cluster: LocalCluster, *others: BrokerProcess) -> BrokerProcess:
    """Return who leads as soon as somebody does who is none of these."""
    master = wait_until(lambda: find_master(cluster, *others), TIMEOUT_S, what="another master")
    assert master is not None
    return master


def wait_in_sync(cluster: LocalCluster, *members: BrokerProcess) -> None:
    """Return when the master has exactly these in sync, and they are all that follow it."""
    wanted = tuple(sorted(member.broker_id for member in members))

    def is_so() -> bool:
        master = find_master(cluster)
        report = master.replication() if master is not None else None
        return report is not None and report.in_sync == wanted

    wait_until(is_so, TIMEOUT_S, what=f"in sync: {wanted}")


def wait_caught_up(cluster: LocalCluster) -> None:
    """Return when every running replica has all that its master has."""

    def is_so() -> bool:
        master = find_master(cluster)
        report = master.replication() if master is not None else None
        running = sum(broker.running and not broker.paused for broker in cluster.brokers)
        if report is None:
            return False
        behind = [replica.behind_bytes for replica in report.replicas if replica.connected]
        return len(behind) == running - 1 and not any(behind)

    wait_until(is_so, TIMEOUT_S, what="all replicas have everything")


def queues(cluster: LocalCluster) -> list[MessageQueue]:
    """Return the queues of the topic "t"."""
    with Admin(cluster.nameserver) as admin:
        return list(admin.route("t").read_queues())
