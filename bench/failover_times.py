"""Failover times: from the kill of a master to the first ack by the next one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from kill_runs import Plan
from numbered_load import QUEUES, TOPIC
from replica_cluster import TIMEOUT_S, ReplicaCluster

from minimq import Admin, Message, Producer

Undo = Callable[[], None]

_OPTIONS: Mapping[str, object] = {"role": "sync-master", "min_in_sync": 1}
#: The default, to measure what users get.
_LEASE_S = 3.0


@dataclass
class FailoverLine:
    """The measured times."""

    name: str
    seconds: list[float]

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    @property
    def worst_s(self) -> float:
        return max(self.seconds)


class Sending:
    """Sends messages one after the other during the block, and records when each send began and was acknowledged."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sending", daemon=True)
        self._sent: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def first_since(self, moment: float) -> float:
        """Wait for the ack of the first message whose send began at `moment` or later; return the time of the ack."""
        deadline = time.monotonic() + TIMEOUT_S
        index = 0
        while time.monotonic() < deadline:
            for began, done in self._sent[index:]:
                index += 1
                if began >= moment:
                    return done
            time.sleep(0.005)
        raise SystemExit(f"nothing was acknowledged within {TIMEOUT_S:g} s")

    def _run(self) -> None:
        with Producer(self._nameserver, send_timeout_s=TIMEOUT_S) as producer:
            while not self._end.is_set():
                began = time.monotonic()
                producer.send(Message(TOPIC, b"x" * 100))
                self._sent.append((began, time.monotonic()))


def failover(plan: Plan, folder: Path) -> list[FailoverLine]:
    """Measure with the controller in a name server."""
    with ReplicaCluster(folder, 2, _OPTIONS, lease_s=_LEASE_S) as cluster:
        return [FailoverLine("failover", measured(plan, cluster, nothing))]


def failover_etcd(plan: Plan, folder: Path) -> list[FailoverLine]:
    """Measure with an etcd of three members; kill one of them at the same moment."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from support.etcd_cluster import MEMBERS, etcd_cluster

    with (
        etcd_cluster(folder) as etcd,
        ReplicaCluster(folder, 2, _OPTIONS, controller=etcd.option, lease_s=_LEASE_S) as cluster,
    ):

        def lose_member() -> Undo:
            number = plan.chance.randrange(MEMBERS)
            etcd.kill(number)
            return lambda: etcd.start(number)

        return [FailoverLine("failover-etcd", measured(plan, cluster, lose_member))]


def measured(plan: Plan, cluster: ReplicaCluster, also: Callable[[], Undo]) -> list[float]:
    """Kill the master repeatedly, and return the times until the next ack.

    Args:
        plan: number of rounds.
        cluster: the replicas.
        also: called at the same moment; returns a function that undoes it.
    """
    with Admin(cluster.nameserver) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    seconds: list[float] = []
    with Sending(cluster.nameserver) as sending:
        for number in range(plan.rounds):
            plan.tell(number / plan.rounds, "kill")
            cluster.wait_in_sync()
            time.sleep(plan.chance.uniform(0.5, 1.5))  # a random moment between two reports to the controller
            master = cluster.master()
            sending.first_since(time.monotonic())
            killed_at = time.monotonic()
            master.kill()
            undo = also()
            seconds.append(sending.first_since(killed_at) - killed_at)
            undo()
            master.start()
        cluster.wait_in_sync()
    return seconds


def nothing() -> Undo:
    return lambda: None
