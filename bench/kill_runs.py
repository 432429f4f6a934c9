"""One run of faults against replicas under load, from an empty directory to the verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median

from group_run import started, wait_until
from network import Network
from numbered_load import GROUP, QUEUES, TOPIC, Told, produce, read
from numbered_verdict import Journals, Verdict, judge_group, judge_log, stored
from offset_watch import OffsetWatch
from replica_cluster import TIMEOUT_S, ReplicaCluster
from replica_faults import Faults

from minimq import Admin

_MEMBERS = 2
#: Shorter than the default, to save time.
LEASE_S = 1.5


@dataclass
class Plan:
    """The plan of a run."""

    rounds: int
    rate: int
    chance: random.Random
    network: Network | None
    tell: Callable[[float, str], None]
    fault: str = ""


@dataclass
class KillLine:
    """The result of a run."""

    name: str
    faults: Mapping[str, int]
    seconds: float
    failovers: int
    failover_median_s: float | None
    failover_worst_s: float | None
    verdict: Verdict
    offsets_back: int
    differences: list[str]

    @property
    def is_sound(self) -> bool:
        """True if no broken promise was found."""
        found = self.verdict
        wrong = (found.lost, found.twice, found.reordered, found.unread, found.vanished, found.back)
        return not any((*wrong, found.below_committed, self.offsets_back, self.differences))


def kill_run(name: str, plan: Plan, folder: Path, count: int, options: Mapping[str, object]) -> KillLine:
    """Run a scenario.

    Args:
        name: name of the scenario.
        plan: settings of the run.
        folder: an empty folder for data, logs and journals.
        count: number of replicas.
        options: options of the replicas.
    """
    verdict = Verdict()
    given = {**options, "upkeep_interval_s": 0.5, "session_grace_s": 1.0}
    processes: list[BaseProcess] = []
    try:
        with ReplicaCluster(folder, count, given, network=plan.network, lease_s=LEASE_S) as cluster:
            with Admin(cluster.nameserver) as admin:
                admin.create_topic(TOPIC, queues=QUEUES)
            producer = started(produce, cluster.nameserver, plan.rate, folder)
            journals = [folder / f"member-{number}.journal" for number in range(_MEMBERS)]
            for path in journals:
                path.touch()
            members = [started(read, cluster.nameserver, path.stem, path) for path in journals]
            processes += [producer, *members]
            faults = Faults(cluster, plan.chance, plan.tell, plan.fault)
            with OffsetWatch(cluster.nameserver, GROUP, TOPIC) as watch:
                wait_until(lambda: len(Journals(journals).reached()) == QUEUES, "the group does not read all queues")
                faults.carry_out(plan.rounds)
                ended(producer)
                told = Told.load(folder)
                log = stored(cluster.nameserver)
                drain(journals, log)
            for member in members:
                ended(member)
            cluster.wait_caught_up()
            cluster.stop_in_order()
            differences = cluster.differences()
    finally:
        for process in processes:
            process.kill()
    verdict.examples += watch.examples
    judge_log(verdict, told, log)
    judge_group(verdict, Journals(journals), log)
    times = faults.failovers
    return KillLine(
        name=name,
        faults=dict(faults.done),
        seconds=told.seconds,
        failovers=len(times),
        failover_median_s=median(times) if times else None,
        failover_worst_s=max(times, default=None),
        verdict=verdict,
        offsets_back=watch.went_back,
        differences=differences,
    )


def drain(journals: list[Path], log: list[list[int]]) -> None:
    """Wait until the group has read everything, or for `TIMEOUT_S`: the verdict counts what is missing."""
    ends = {queue_id: len(numbers) for queue_id, numbers in enumerate(log) if numbers}
    deadline = time.monotonic() + TIMEOUT_S
    while Journals(journals).reached() != ends and time.monotonic() < deadline:
        time.sleep(0.5)


def ended(process: BaseProcess) -> None:
    """End a process cleanly."""
    process.terminate()
    process.join(2 * TIMEOUT_S)
    if process.exitcode != 0:
        raise SystemExit(f"a process of the load has not ended in order: status {process.exitcode}")
