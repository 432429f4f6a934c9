"""Many runs on one cluster: the choice of their faults, and their results."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from copied_topic import random_rows, send
from copying_run import CopyingRun, CopyLine, Plan
from query_faults import FAULTS
from spark_driver import Drivers, Job

from minimq import Admin, LocalCluster

#: Fraction of runs with two faults.
_TWO_FAULTS = 1 / 2
#: With more starts of drivers than this, preparing a class archive for faster starts pays off.
_MANY_STARTS = 5


@dataclass
class Scenario:
    """The results of the runs."""

    name: str
    lines: list[CopyLine] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """True if every copy is exact, and the brokers' data is undamaged."""
        return all(line.is_exact for line in self.lines) and not self.damage

    def carry_out(self, numbers: Sequence[int], faults: Sequence[Sequence[str]], seed: str, plan: Plan) -> None:
        """Carry out runs.

        Args:
            numbers: numbers of the runs.
            faults: faults by the number of the run.
            seed: together with the number of a run, the seed of its randomness.
            plan: settings of all runs.
        """
        drivers = Drivers(plan.folder)
        with LocalCluster(brokers=2, data_dir=plan.folder / "cluster") as cluster:
            try:
                if sum(FAULTS[fault].kills_driver for number in numbers for fault in faults[number]) > _MANY_STARTS:
                    drivers.archive_classes(prepared(cluster, plan))
                for number in numbers:
                    chance = random.Random(f"{seed} {number}")
                    run = CopyingRun(CopyLine(number, list(faults[number])), chance, plan, cluster, drivers)
                    self.lines.append(run.carry_out())
            finally:
                drivers.stop()
        for broker in cluster.brokers:
            command = [sys.executable, "-m", "minimq_broker", "check", str(broker.data_dir)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                self.damage += (done.stdout + done.stderr).splitlines()


def prepared(cluster: LocalCluster, plan: Plan) -> Job:
    """Prepare a job that runs without faults."""
    with Admin(cluster.nameserver) as admin:
        for topic in ("source", "target"):
            admin.create_topic(topic, queues=1)
    send(cluster.nameserver, "source", random_rows(random.Random(0), 100))
    return Job(
        nameserver=cluster.nameserver,
        source="source",
        target="target",
        checkpoint=str(plan.folder / "checkpoint"),
        batch_rows=100,
        keyed=True,
        transactional=plan.transactional,
    )


def faults_of(count: int, kinds: Sequence[str], chance: random.Random) -> list[list[str]]:
    """Return one or two faults for each run: first each kind once, then by weight, and again from the start."""
    runs: list[list[str]] = []
    deck: list[str] = []
    for _ in range(count):
        if not deck:
            once = list(kinds)
            again = [kind for kind in kinds for _ in range(FAULTS[kind].weight - 1)]
            chance.shuffle(once)
            chance.shuffle(again)
            deck = once + again
        faults = [deck.pop(0)]
        second = next((index for index, kind in enumerate(deck) if _may_follow(faults[0], kind)), None)
        if second is not None and chance.random() < _TWO_FAULTS:
            faults.append(deck.pop(second))
        runs.append(faults)
    return runs


def _may_follow(first: str, second: str) -> bool:
    """Return whether a run may have both: a driver with executors is never killed, since it takes long to start."""
    pair = FAULTS[first], FAULTS[second]
    return not (any(one.needs_executors for one in pair) and any(one.kills_driver for one in pair))
