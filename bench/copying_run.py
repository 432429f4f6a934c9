"""One run of a query that copies a topic under faults, from an empty checkpoint to the verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from copied_topic import Verdict, judge, random_rows, send, stored
from query_faults import FAULTS, Scene
from spark_driver import Drivers, Job, SparkDriver
from transaction_watch import Checkpoint, TransactionWatch

from minimq import Admin, LocalCluster, Message, Producer

#: Queues at each of the two brokers.
_QUEUES = 2
_MAX_STARTS = 15
_END_S = 300.0
#: Fraction of runs where all messages of one key go to one queue, in order.
_KEYED = 1 / 2


@dataclass(frozen=True)
class Plan:
    """The settings that all runs share."""

    rows: int
    batches: int
    transactional: bool
    plant: bool
    folder: Path
    tell: Callable[[CopyLine, str], None]


@dataclass
class CopyLine:
    """The result of a run."""

    number: int
    faults: list[str]
    missed: list[str] = field(default_factory=list)
    keyed: bool = False
    seconds: float = 0.0
    restarts: int = 0
    replayed: int = 0
    finished: int = 0
    failures: list[str] = field(default_factory=list)
    left: int = 0
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def is_exact(self) -> bool:
        """True if the copy is exact, and no staged batches are left over."""
        return self.verdict.is_exact and not self.left


class CopyingRun:
    """Carries out one run.

    Args:
        line: has the number of the run and its faults; the other fields are filled in.
        chance: the only source of randomness.
        plan: settings of all runs.
        cluster: a cluster of two brokers.
        drivers: provides the Spark drivers that run the query.
    """

    def __init__(
        self, line: CopyLine, chance: random.Random, plan: Plan, cluster: LocalCluster, drivers: Drivers
    ) -> None:
        self.line = line
        self._plan = plan
        self._chance = chance
        self._cluster = cluster
        self._drivers = drivers
        self._kinds = [FAULTS[name] for name in line.faults]
        self._to_come = list(self._kinds)
        self._rows = random_rows(chance, plan.rows)
        target = f"target-{line.number}"
        self._checkpoint = Checkpoint(plan.folder / f"checkpoint-{line.number}", target)
        line.keyed = chance.random() < _KEYED
        self._job = Job(
            nameserver=cluster.nameserver,
            source=f"source-{line.number}",
            target=target,
            checkpoint=str(self._checkpoint.folder),
            batch_rows=-(-plan.rows // plan.batches),
            keyed=line.keyed,
            transactional=plan.transactional,
        )

    def carry_out(self) -> CopyLine:
        with Admin(self._cluster.nameserver) as admin:
            for topic in (self._job.source, self._job.target):
                admin.create_topic(topic, queues=_QUEUES)
            send(self._cluster.nameserver, self._job.source, self._rows)
            with TransactionWatch(self._cluster.brokers) as watch:
                self._copy(watch, lambda: sum(one.max_offset for one in admin.describe_topic(self._job.target).queues))
            if self._plan.plant:
                self._send_again()
            copied = stored(self._cluster.nameserver, self._job.target)
            self.line.verdict = judge(self._rows, copied, in_order=self._job.keyed)
            if self.line.is_exact:
                for topic in (self._job.source, self._job.target):
                    admin.delete_topic(topic)
        self._plan.tell(self.line, "")
        return self.line

    def _copy(self, watch: TransactionWatch, visible: Callable[[], int]) -> None:
        began = time.monotonic()
        driver = self._next_driver()
        scene = Scene(self._cluster, driver, self._checkpoint, watch, visible, self._plan.transactional, self._chance)
        driver.begin(self._job)
        moments = sorted(self._chance.sample(range(self._plan.batches - 1), len(self._kinds)))
        for name, kind, scene.batch in zip(self.line.faults, self._kinds, moments, strict=True):
            self._plan.tell(self.line, f"{name}, from micro-batch {scene.batch} on")
            came = kind.carry_out(scene)
            while not came and scene.outcome and scene.driver.lives:  # the query failed before the moment came
                self._failed(scene)
                came = kind.carry_out(scene)
            del self._to_come[0]
            if not came:
                self.line.missed.append(name)
            if not scene.driver.lives:
                self._start_again(scene)
        self._plan.tell(self.line, "to the end")
        while not scene.look(_END_S) or scene.outcome:
            self._failed(scene)
        self.line.seconds = time.monotonic() - began
        scene.clean_up()
        found = watch.everywhere(self._checkpoint.transaction)
        self.line.left = sum(broker.staged for broker in found if broker is not None)

    def _failed(self, scene: Scene) -> None:
        """Record why the query failed, or that it is stuck, and restart it."""
        self.line.failures.append(scene.outcome or f"the query has not ended after {_END_S:.0f} s")
        if scene.outcome is None:
            scene.kill_driver()
        self._start_again(scene)

    def _start_again(self, scene: Scene) -> None:
        """Restart the query from its checkpoint."""
        self.line.restarts += 1
        if self.line.restarts > _MAX_STARTS:
            raise SystemExit(f"run {self.line.number} does not come to its end: {self.line.failures[-1]}")
        batch = self._checkpoint.planned
        if batch > self._checkpoint.done:
            self.line.replayed += 1
            self.line.finished += any(scene.decided_at(index) >= batch for index in (0, 1))
        scene.driver = self._next_driver()
        scene.outcome = None
        scene.driver.begin(self._job)
        if scene.stragglers:
            scene.until(lambda: self._checkpoint.done >= batch)
            if not scene.release():
                self.line.missed.append("driver, stragglers")

    def _next_driver(self) -> SparkDriver:
        self._plan.tell(self.line, "waiting for a driver")
        with_executors = any(kind.needs_executors for kind in self._kinds)
        # If the driver will be killed, start a spare one meanwhile, unless that takes as long as the whole run.
        spare = not with_executors and any(kind.kills_driver for kind in self._to_come)
        return self._drivers.ready(with_executors=with_executors, spare=spare)

    def _send_again(self) -> None:
        row = self._rows[0]
        with Producer(self._cluster.nameserver) as producer:
            producer.send(Message(self._job.target, b"%d %d" % (row.number, row.amount), keys=(row.key,)))
