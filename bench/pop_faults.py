"""That a work queue loses no message, and gives none to two, whatever dies: real workers, and journals of theirs.

    .venv/bin/python bench/pop_faults.py [--rounds 20] [--scenario all] [--seed N]

A round kills a worker, kills the broker, lets its slave take over, makes one of them hang, or sets the clock of the
broker; meanwhile messages are sent, and workers acknowledge, release, keep and forget them. In the scenarios
with "fifo" they are of 20 message groups, each of which has to be done in order.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from pathlib import Path

import click
from group_run import started, wait_until
from pop_journals import GRACE_S, INVISIBLE_S, Verdict, judge, work
from shifted_clocks import ShiftedClock

from minimq import Admin, LocalCluster, Message, MiniMQError, Producer
from minimq.local.server_process import BrokerProcess

TOPIC = "jobs"
WORKERS = 4
MESSAGE_GROUPS = 20
_PATIENCE_S = 120.0
_STEP_S = 0.02


class Trial:
    """A cluster, workers and a producer, to which faults happen."""

    def __init__(
        self, cluster: LocalCluster, folder: Path, chance: random.Random, rate: int, *, forgetful: bool, fifo: bool
    ) -> None:
        self.cluster = cluster
        self.chance = chance
        self.clock: ShiftedClock | None = None
        self.journals: dict[str, Path] = {}
        self.killed: dict[str, float] = {}
        #: When something began and was over that is no death of a worker.
        self.faults: list[float] = []
        self._folder, self._rate, self._forgetful, self._fifo = folder, rate, forgetful, fifo
        self._live: dict[str, BaseProcess] = {}
        self._sent = 0
        self._end = threading.Event()
        self._sending = threading.Thread(target=self._send)

    def run(self, rounds: int, disturb: Callable[[Trial], None]) -> Verdict:
        """Disturb what runs so many times, let everything be done, and judge."""
        self._sending.start()
        try:
            for _ in range(WORKERS):
                self.join()
            wait_until(lambda: all(path.stat().st_size for path in self.journals.values()), "workers do not begin")
            for _ in range(rounds):
                time.sleep(self.chance.uniform(0.2, 1.0))
                disturb(self)
        finally:
            self._end.set()
            self._sending.join()
        wait_until(self._is_done, "not all messages are done", _PATIENCE_S)
        for process in self._live.values():
            process.terminate()
        for process in self._live.values():
            process.join()
        return judge(self.journals, self.killed, self.faults, self._sent)

    def close(self) -> None:
        for process in self._live.values():
            process.kill()

    def join(self) -> None:
        """Start a worker."""
        name = f"worker-{len(self.journals):03d}"
        path = self.journals[name] = self._folder / name
        path.touch()
        seed = self.chance.randrange(1 << 30)
        self._live[name] = started(work, self.cluster.nameserver, TOPIC, name, path, seed, self._forgetful)

    def pick(self) -> tuple[str, int]:
        """Return a worker, and the id of its process."""
        name = self.chance.choice(sorted(self._live))
        return name, self._live[name].pid or 0

    def kill_worker(self) -> None:
        name, pid = self.pick()
        self.killed[name] = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self._live.pop(name).join()
        self.join()

    def pause(self, pid: int) -> None:
        self.faults.append(time.monotonic())
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.2, 1.5 * INVISIBLE_S))
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.2)
        self.faults.append(time.monotonic())

    def master(self) -> BrokerProcess:
        """Return who leads, as soon as somebody does."""
        found: list[BrokerProcess] = []

        def look() -> bool:
            found[:] = [broker for broker in self.cluster.brokers if broker.current_role in ("alone", "master")]
            return bool(found)

        wait_until(look, "nobody leads", _PATIENCE_S)
        return found[0]

    def kill_broker(self) -> None:
        broker = self.master()
        self.faults.append(time.monotonic())
        broker.kill()
        if len(self.cluster.brokers) > 1:
            self.master()
        broker.start()
        self.cluster._wait_in_sync()
        time.sleep(0.2)
        self.faults.append(time.monotonic())

    def _send(self) -> None:
        with Producer(self.cluster.nameserver, send_timeout_s=_PATIENCE_S) as producer:
            while not self._end.wait(_STEP_S):
                futures = [
                    producer.send_async(Message(TOPIC, b"job", message_group=self._message_group()))
                    for _ in range(max(1, int(self._rate * _STEP_S)))
                ]
                for future in futures:
                    future.result()
                self._sent += len(futures)

    def _message_group(self) -> str | None:
        return f"group-{random.randrange(MESSAGE_GROUPS)}" if self._fifo else None

    def _is_done(self) -> bool:
        try:
            with Admin(self.cluster.nameserver) as admin:
                return admin.describe_group(TOPIC).lag == 0
        except MiniMQError:
            return False


def kill(trial: Trial) -> None:
    """A worker dies, or the broker does, which has no slave."""
    (trial.kill_worker if trial.chance.random() < 0.6 else trial.kill_broker)()


def failover(trial: Trial) -> None:
    """The master dies, and its slave takes over."""
    trial.kill_broker()


def hang(trial: Trial) -> None:
    """A worker, or the broker, hangs for a while."""
    trial.pause(trial.pick()[1] if trial.chance.random() < 0.7 else trial.master().pid or 0)


def clocks(trial: Trial) -> None:
    """The clock of the broker jumps by an hour, there or back."""
    assert trial.clock is not None
    trial.clock.shift(trial.chance.choice((-3600, 0, 3600)))
    if trial.chance.random() < 0.3:
        trial.kill_worker()


def nothing(trial: Trial) -> None:
    """Nothing happens, but workers write down acknowledgements that they do not send: shows that the check can fail."""


SCENARIOS = {
    **{"kill": kill, "failover": failover, "hang": hang, "clocks": clocks, "forgetful": nothing},
    **{"fifo-kill": kill, "fifo-failover": failover, "fifo-hang": hang},
}


def run(name: str, rounds: int, rate: int, chance: random.Random) -> Verdict:
    options: dict[str, object] = {"session_grace_s": GRACE_S}
    slaves, fifo = int(name.endswith("failover")), name.startswith("fifo")
    if slaves:
        options |= {"role": "sync-master", "min_in_sync": 1}
    with (
        tempfile.TemporaryDirectory(prefix="pop-faults-") as folder,
        LocalCluster(
            brokers=1, slaves=slaves, broker_options=options, nameserver_options={"term_lease_s": 1.5}
        ) as cluster,
    ):
        trial = Trial(cluster, Path(folder), chance, rate, forgetful=name == "forgetful", fifo=fifo)
        if name == "clocks":
            trial.clock = ShiftedClock(Path(folder) / "clock")
            with trial.clock.for_children():
                cluster.brokers[0].restart()
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1, fifo=fifo)
        try:
            verdict = trial.run(rounds, SCENARIOS[name])
        finally:
            trial.close()
        for broker in cluster.brokers:
            broker.stop()
            command = [sys.executable, "-m", "minimq_broker", "check", str(broker.data_dir)]
            checked = subprocess.run(command, capture_output=True, text=True, check=False)
            if checked.returncode:
                verdict.damaged += 1
                verdict.find(checked.stdout, checked.stderr)
        return verdict


@click.command()
@click.option("--scenario", type=click.Choice(["all", *SCENARIOS]), default="all")
@click.option("--rounds", default=20, help="Faults of each scenario.")
@click.option("--rate", default=200, help="Messages per second.")
@click.option("--seed", type=int)
def main(scenario: str, rounds: int, rate: int, seed: int | None) -> None:
    """Run scenarios, and print what the journals prove, as a line of JSON each."""
    seed = secrets.randbelow(1 << 30) if seed is None else seed
    print(f"--seed={seed}", file=sys.stderr)
    sound = True
    for name in SCENARIOS if scenario == "all" else [scenario]:
        began = time.monotonic()
        verdict = run(name, rounds, rate, random.Random(f"{seed}/{name}"))
        sound &= verdict.is_sound != (name == "forgetful")
        line = {"scenario": name, "rounds": rounds, "seconds": round(time.monotonic() - began), **asdict(verdict)}
        print(json.dumps(line), flush=True)
    sys.exit(not sound)


if __name__ == "__main__":
    main()
