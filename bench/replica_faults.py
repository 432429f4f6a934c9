"""Faults of replicas at random moments."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from replica_cluster import CONTROLLER, ReplicaCluster

from minimq.local.server_process import BrokerProcess

#: Faults by name, with their weights. Every second fault is a kill; the others are cuts, or pauses if there is no
#: network to cut.
KILLS = {"kill master": 5, "kill slave": 2}
CUTS = {
    "cut master off": 3,
    "cut slave off": 1,
    "part master and controller": 2,
    "part slave and controller": 1,
    "part master and slave": 2,
}
PAUSES = {"pause master": 4, "pause slave": 2}

#: Maximum time between two faults, and maximum duration of a fault after the failover.
_QUIET_S = 2.0
_LONGER_S = 1.0
#: Fraction of faults that do not wait for all replicas to be in sync again.
_HASTE = 1 / 3
#: A new master must lead within this number of leases, if one can be elected.
_LEASES = 3


@dataclass
class Faults:
    """Causes faults, one after the other."""

    cluster: ReplicaCluster
    chance: random.Random
    tell: Callable[[float, str], None]
    fault: str = ""
    done: Counter[str] = field(default_factory=Counter)
    failovers: list[float] = field(default_factory=list)

    def carry_out(self, rounds: int) -> None:
        """Cause `rounds` faults, and return when all replicas are in sync again."""
        in_turn = KILLS, CUTS if self.cluster.network else PAUSES
        for number in range(rounds):
            kinds = in_turn[number % 2]
            time.sleep(self.chance.uniform(0.0, _QUIET_S))
            [kind] = self.chance.choices(list(kinds), list(kinds.values()))
            kind = self.fault or kind
            one = self.chance.random()
            self.tell(number / rounds, kind)
            self._carry_out(kind, one, self.chance.uniform(0.0, _LONGER_S))
            if self.chance.random() > _HASTE:
                self.cluster.wait_in_sync()
        self.cluster.wait_in_sync()

    def _carry_out(self, kind: str, one: float, longer_s: float) -> None:
        """Cause a fault and undo it.

        Args:
            kind: name of the fault.
            one: chooses the slave, from 0 to 1.
            longer_s: duration in seconds, after the failover if there is one.
        """
        cluster = self.cluster
        master = cluster.master()
        slaves = [replica for replica in cluster.replicas if replica is not master]
        slave = slaves[int(one * len(slaves))]
        target = slave if " slave" in kind and not kind.endswith("master and slave") else master
        began = time.monotonic()
        self._begin(kind, target, slave)
        self.done[kind] += 1
        if target is master and "and slave" not in kind and cluster.other_master(master, _LEASES * cluster.lease_s):
            self.failovers.append(time.monotonic() - began)
        time.sleep(longer_s)
        self._end(kind, target)

    def _begin(self, kind: str, target: BrokerProcess, slave: BrokerProcess) -> None:
        network = self.cluster.network
        match kind.split():
            case "kill", _:
                target.kill()
            case "pause", _:
                target.pause()
            case "cut", *_ if network:
                network.unplug(target.name)
            case "part", _, _, "controller" if network:
                network.part(target.name, CONTROLLER)
            case "part", *_ if network:
                network.part(target.name, slave.name)

    def _end(self, kind: str, target: BrokerProcess) -> None:
        if self.cluster.network:
            self.cluster.network.mend()
        target.resume()
        target.start()  # unless it runs
