"""Faults of a streaming query and of its brokers, at chosen moments of a micro-batch."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from process_tree import Descendant, kill_all, reap
from spark_driver import DriverGone, SparkDriver
from transaction_watch import Checkpoint, TransactionWatch

from minimq import LocalCluster
from minimq.local.server_process import BrokerProcess

#: Timeout of the wait for a moment: after it, something is stuck.
_MOMENT_S = 240.0
#: About the duration of a micro-batch, and the maximum downtime of a broker.
_BATCH_S = 0.5
_OFFLINE_S = 1.0
#: Processes left by a killed driver have this time to end before they are killed.
_ORPHANS_S = 10.0
_LOOK_AGAIN_S = 0.005
#: Durations of a broker's pauses, and of its running between them, in `half_decided`.
_STILL_S = 0.03
_GOING_S = 0.003


@dataclass
class Scene:
    """One query, and everything that faults can disturb.

    Attributes:
        cluster: a cluster of two brokers; the first one coordinates the transactions.
        driver: runs the query.
        checkpoint: checkpoint of the query.
        watch: asks the brokers for the progress of transactions.
        stored: returns the number of visible messages in the copy.
        transactional: whether each micro-batch is a transaction; if not, messages are visible at once.
        chance: the only source of randomness.
        batch: the earliest micro-batch for the next fault.
        outcome: why the query has ended, "" if everything is copied; None while it runs.
        stragglers: stopped processes of a killed driver.
        orphans: all processes left by killed drivers, dead or alive.
    """

    cluster: LocalCluster
    driver: SparkDriver
    checkpoint: Checkpoint
    watch: TransactionWatch
    stored: Callable[[], int]
    transactional: bool
    chance: random.Random
    batch: int = 0
    outcome: str | None = None
    stragglers: list[Descendant] = field(default_factory=list)
    orphans: list[Descendant] = field(default_factory=list)

    def look(self, timeout_s: float = 0.0) -> bool:
        """Wait at most `timeout_s` for the end of the query; return whether it has ended."""
        if self.outcome is None:
            try:
                self.outcome = self.driver.ended(timeout_s)
            except DriverGone as error:
                self.outcome = str(error)
        return self.outcome is not None

    def until(self, condition: Callable[[], bool], again_s: float = _LOOK_AGAIN_S) -> bool:
        """Wait for a condition; return False if the query ended before."""
        deadline = time.monotonic() + _MOMENT_S
        while not condition():
            if self.look() or time.monotonic() >= deadline:
                return False
            time.sleep(again_s)
        return True

    def planned(self) -> bool:
        """Wait until the earliest micro-batch for the fault begins."""
        return self.until(lambda: self.checkpoint.planned >= self.batch)

    def underway(self) -> bool:
        """Wait for a random moment in a micro-batch."""
        came = self.planned()
        if came:
            time.sleep(self.chance.uniform(0.0, _BATCH_S))
        return came and not self.look()

    def staged(self) -> bool:
        """Wait until a broker has staged batches of an unfinished micro-batch, and a little longer."""
        came, before = self.planned(), self.stored()
        came = came and self.until(
            lambda: any(map(self._staged, (0, 1))) if self.transactional else self.stored() > before, again_s=0.0
        )
        if came:
            time.sleep(self.chance.choice((0.0, 0.01, 0.03, 0.1)))
        return came and not self.look()

    def decided(self) -> bool:
        """Wait until the coordinator has decided a micro-batch; publishing it and notifying the other broker follow."""
        if not self.planned():
            return False
        former = self.decided_at(0)
        return self.until(lambda: self.decided_at(0) > former, again_s=0.0)

    def half_decided(self) -> bool:
        """Wait until the coordinator has decided a micro-batch and the other broker has not; leave that broker paused.

        The other broker only runs for short moments meanwhile, so that it hardly ever learns of the decision at once.
        """
        if not self.planned():
            return False
        former, other = self.decided_at(0), self.cluster.brokers[1]

        def came() -> bool:
            other.pause()
            go_on = time.monotonic() + _STILL_S
            while time.monotonic() < go_on:
                if self.decided_at(0) > former:
                    return True
            other.resume()
            return False

        found = self.until(came, again_s=_GOING_S)
        if not found:
            other.resume()
        return found

    def decided_at(self, index: int) -> int:
        """Return the number of the latest decision that a broker knows, or -1."""
        found = self.watch.at(index, self.checkpoint.transaction)
        return found.decided if found is not None else -1

    def _staged(self, index: int) -> bool:
        found = self.watch.at(index, self.checkpoint.transaction)
        return found is not None and found.staged > 0

    def any_broker(self) -> BrokerProcess:
        return self.chance.choice(self.cluster.brokers)

    def bring_back(self, *brokers: BrokerProcess) -> None:
        """Restart killed brokers after a random time."""
        time.sleep(self.chance.uniform(0.0, _OFFLINE_S))
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait_ready()

    def kill_driver(self, spared: Sequence[Descendant] = ()) -> None:
        """Kill the driver and its processes, except the spared ones."""
        self.orphans += self.driver.kill(spared)

    def release(self) -> bool:
        """Resume the stragglers; return whether there were any."""
        found = any(process.lives for process in self.stragglers)
        for process in self.stragglers:
            process.send(signal.SIGCONT)
        self.stragglers = []
        return found

    def clean_up(self) -> None:
        """Wait for the end of all processes of killed drivers; kill them after a timeout."""
        self.release()
        deadline = time.monotonic() + _ORPHANS_S
        while any(process.lives for process in self.orphans) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
        kill_all(self.orphans)
        reap(self.orphans)
        self.orphans = []


# ---- The faults: each returns whether its moment came --------------------------------------------------


def kill_executor(scene: Scene) -> bool:
    came = scene.underway()
    executors = scene.driver.executors
    if came and executors:
        scene.chance.choice(executors).send(signal.SIGKILL)
    return came and bool(executors)


def kill_worker(scene: Scene) -> bool:
    came = scene.underway()
    workers = scene.driver.workers
    if came and workers:
        scene.chance.choice(workers).send(signal.SIGKILL)
    return came and bool(workers)


def kill_driver(scene: Scene) -> bool:
    came = scene.underway()
    if came:
        scene.kill_driver()
    return came


def kill_driver_alone(scene: Scene) -> bool:
    """Kill only the driver: its executors continue until they notice, and stage batches that no one will commit."""
    came = scene.underway()
    if came:
        scene.kill_driver(spared=scene.driver.executor_trees)
    return came


def kill_driver_of_stragglers(scene: Scene) -> bool:
    """Kill the driver; its stopped tasks continue after the next driver has written their micro-batch."""
    came = scene.staged()
    if came:
        scene.stragglers = scene.driver.workers
        for process in scene.stragglers:
            process.send(signal.SIGSTOP)
        scene.kill_driver(spared=scene.stragglers)
    return came


def kill_driver_staged(scene: Scene) -> bool:
    came = scene.staged()
    if came:
        scene.kill_driver()
    return came


def kill_driver_half_decided(scene: Scene) -> bool:
    """Kill the driver while the second broker hangs before it learns of the decision."""
    came = scene.half_decided()
    if came:
        scene.kill_driver()
        scene.cluster.brokers[1].resume()
    return came and scene.decided_at(1) < scene.decided_at(0)


def kill_broker_half_decided(scene: Scene) -> bool:
    """Kill the coordinator after its decision, or the other broker before it learns of it; the driver continues."""
    came = scene.half_decided()
    if came:
        broker = scene.any_broker()
        broker.kill()
        scene.cluster.brokers[1].resume()  # unless it is dead
        scene.bring_back(broker)
    return came


def kill_broker(scene: Scene) -> bool:
    came = scene.underway()
    if came:
        broker = scene.any_broker()
        broker.kill()
        scene.bring_back(broker)
    return came


def kill_broker_staged(scene: Scene) -> bool:
    came = scene.staged()
    if came:
        broker = scene.any_broker()
        broker.kill()
        scene.bring_back(broker)
    return came


def kill_broker_decided(scene: Scene) -> bool:
    """Kill one of the brokers before everything is published."""
    came = scene.decided()
    if came:
        broker = scene.any_broker()
        broker.kill()
        scene.bring_back(broker)
    return came


def kill_driver_and_broker_decided(scene: Scene) -> bool:
    """Kill driver and broker after the decision, which must survive on the brokers."""
    came = scene.decided()
    if came:
        broker = scene.any_broker()
        broker.kill()
        scene.kill_driver()
        scene.bring_back(broker)
    return came


def kill_all_staged(scene: Scene) -> bool:
    """Kill everything at once, like a power failure."""
    came = scene.staged()
    if came:
        for broker in scene.cluster.brokers:
            broker.kill()
        scene.kill_driver()
        scene.bring_back(*scene.cluster.brokers)
    return came


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    carry_out: Callable[[Scene], bool]
    weight: int = 1
    kills_driver: bool = False
    needs_executors: bool = False
    needs_transactions: bool = False


FAULTS: Mapping[str, Fault] = {
    "executor": Fault(kill_executor, 3, needs_executors=True),
    "worker": Fault(kill_worker, 2),
    "driver": Fault(kill_driver, 2, kills_driver=True),
    "driver alone": Fault(kill_driver_alone, 1, kills_driver=True, needs_executors=True),
    "driver, stragglers": Fault(kill_driver_of_stragglers, 2, kills_driver=True),
    "driver, staged": Fault(kill_driver_staged, 3, kills_driver=True),
    "driver, half decided": Fault(kill_driver_half_decided, 3, kills_driver=True, needs_transactions=True),
    "broker": Fault(kill_broker, 2),
    "broker, staged": Fault(kill_broker_staged, 3),
    "broker, decided": Fault(kill_broker_decided, 2, needs_transactions=True),
    "broker, half decided": Fault(kill_broker_half_decided, 3, needs_transactions=True),
    "driver and broker, decided": Fault(kill_driver_and_broker_decided, 2, kills_driver=True, needs_transactions=True),
    "all, staged": Fault(kill_all_staged, 1, kills_driver=True),
}
