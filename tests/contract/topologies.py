"""The clusters of scenarios, and what happens to each in the middle of a scenario."""

from __future__ import annotations

from pathlib import Path

from minimq import LocalCluster
from minimq.local.server_process import BrokerProcess
from support.replicas import wait_caught_up, wait_for_master, wait_in_sync


def alone(path: Path) -> LocalCluster:
    return LocalCluster(brokers=1, data_dir=path)


def replicated(path: Path) -> LocalCluster:
    """A master that acknowledges what one of its two slaves has, too."""
    return LocalCluster(
        brokers=1,
        slaves=2,
        data_dir=path,
        broker_options={"role": "sync-master"},
        nameserver_options={"term_lease_s": 3.0},
    )


class Topology:
    """A running cluster; `disturb` does what may happen to it at any time."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def disturb(self) -> None:
        """Nothing happens to a broker that is alone."""


class Replicated(Topology):
    """A slave is killed and comes back."""

    def disturb(self) -> None:
        wait_in_sync(self.cluster, *self.cluster.brokers)
        master = wait_for_master(self.cluster)
        self._restart(next(broker for broker in self.cluster.brokers if broker is not master))

    def _restart(self, broker: BrokerProcess) -> None:
        broker.kill()
        broker.start()


class FailingOver(Replicated):
    """The master is killed, a slave takes its place, and it comes back."""

    def disturb(self) -> None:
        wait_in_sync(self.cluster, *self.cluster.brokers)
        master = wait_for_master(self.cluster)
        master.kill()
        wait_for_master(self.cluster, master)
        master.start()


def settle(cluster: LocalCluster) -> None:
    """Return when all replicas have all that was stored."""
    if len(cluster.brokers) > 1:
        wait_for_master(cluster)
        wait_in_sync(cluster, *cluster.brokers)
        wait_caught_up(cluster)
