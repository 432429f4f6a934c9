"""A trial with workers of a group and a producer on a cluster under faults, and the command that runs scenarios."""

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar

import click
from group_run import started, wait_until

from minimq import Admin, LocalCluster, Message, MinimqError, Producer
from minimq.local.server_process import BrokerProcess

_TIMEOUT_S = 120.0
_STEP_S = 0.02
_EXAMPLES = 10


@dataclass
class Verdict:
    """Numbers of messages, and of stores that `minimq-broker check` finds damaged."""

    sent: int = 0
    lost: int = 0
    damaged: int = 0
    examples: list[str] = field(default_factory=list)

    #: Fields that must be 0.
    WRONG: ClassVar[Sequence[str]] = ("lost", "damaged")

    @property
    def is_sound(self) -> bool:
        return not any(getattr(self, name) for name in self.WRONG)

    def find(self, *what: object) -> None:
        """Add an example, up to a limit."""
        if len(self.examples) < _EXAMPLES:
            self.examples.append(" ".join(map(str, what)))


class Trial:
    """A cluster, workers and a producer. Subclasses define their work, and judge the result."""

    group: str
    topic: str
    WORKERS = 4

    def __init__(self, name: str, cluster: LocalCluster, folder: Path, chance: random.Random, rate: int) -> None:
        self.name, self.cluster, self.folder, self.chance = name, cluster, folder, chance
        self.journals: dict[str, Path] = {}
        self.killed: dict[str, float] = {}
        #: Start and end times of faults other than the kill of a worker.
        self.faults: list[float] = []
        self.sent = 0
        self._rate = rate
        self._live: dict[str, BaseProcess] = {}
        self._end = threading.Event()
        self._sending = threading.Thread(target=self._send)

    # ---- for subclasses --------------------------------------------------------------------------

    def prepare(self, admin: Admin) -> None:
        """Create topics, and whatever else the trial needs."""
        raise NotImplementedError

    def worker(self, name: str, journal: Path, seed: int) -> tuple[Callable[..., None], tuple[object, ...]]:
        """Return the function that a new worker runs, and its arguments."""
        raise NotImplementedError

    def message(self, number: int) -> Message:
        return Message(self.topic, b"%d" % number)

    def judge(self) -> Verdict:
        """Compare the journals of the workers with the stored messages."""
        raise NotImplementedError

    # ---- a run -----------------------------------------------------------------------------------

    def run(self, rounds: int, disturb: Callable[[Any], None]) -> Verdict:
        """Cause `rounds` faults, wait until all messages are processed, and judge."""
        with Admin(self.cluster.nameserver) as admin:
            self.prepare(admin)
        self._sending.start()
        try:
            for _ in range(self.WORKERS):
                self.join()
            wait_until(lambda: all(path.stat().st_size for path in self.journals.values()), "workers do not begin")
            for _ in range(rounds):
                time.sleep(self.chance.uniform(0.1, 0.8))
                disturb(self)
        finally:
            self._end.set()
            self._sending.join()
        wait_until(self._is_done, "not all messages are done", _TIMEOUT_S)
        for process in self._live.values():
            process.terminate()
        for process in self._live.values():
            process.join()
        return self.judge()

    def close(self) -> None:
        for process in self._live.values():
            process.kill()

    def _send(self) -> None:
        with Producer(self.cluster.nameserver, send_timeout_s=_TIMEOUT_S) as producer:
            while not self._end.wait(_STEP_S):
                count = max(1, int(self._rate * _STEP_S))
                futures = [producer.send_async(self.message(self.sent + number)) for number in range(count)]
                for future in futures:
                    future.result()
                self.sent += count

    def _is_done(self) -> bool:
        try:
            with Admin(self.cluster.nameserver) as admin:
                return admin.describe_group(self.group).lag == 0
        except MinimqError:
            return False

    # ---- faults ----------------------------------------------------------------------------------

    def join(self) -> None:
        """Start a worker."""
        name = f"worker-{len(self.journals):03d}"
        path = self.journals[name] = self.folder / name
        path.touch()
        work, arguments = self.worker(name, path, self.chance.randrange(1 << 30))
        self._live[name] = started(work, *arguments)

    def kill_worker(self) -> None:
        """Kill a worker, and start another one."""
        name = self.chance.choice(sorted(self._live))
        self.killed[name] = time.monotonic()
        process = self._live.pop(name)
        process.kill()
        process.join()
        self.join()

    def pause_worker(self, most_s: float) -> None:
        """Stop a worker for a random time, which may be long enough to lose its messages."""
        self._pause(self._live[self.chance.choice(sorted(self._live))].pid or 0, most_s)

    def pause_broker(self, most_s: float) -> None:
        """Stop the master for a random time."""
        self._pause(self.master().pid or 0, most_s)

    def _pause(self, pid: int, most_s: float) -> None:
        self.faults.append(time.monotonic())
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.2, most_s))
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.2)
        self.faults.append(time.monotonic())

    def master(self) -> BrokerProcess:
        """Wait until there is a master, and return it."""
        found: list[BrokerProcess] = []

        def look() -> bool:
            found[:] = [broker for broker in self.cluster.brokers if broker.current_role in ("alone", "master")]
            return bool(found)

        wait_until(look, "nobody leads", _TIMEOUT_S)
        return found[0]

    def kill_broker(self) -> None:
        """Kill the master, and restart it once its slave leads."""
        broker = self.master()
        self.faults.append(time.monotonic())
        broker.kill()
        if len(self.cluster.brokers) > 1:
            self.master()
        broker.start()
        self.cluster._wait_in_sync()
        time.sleep(0.2)
        self.faults.append(time.monotonic())


TrialType = Callable[[str, LocalCluster, Path, random.Random, int], Trial]


def command(
    trial: TrialType,
    options: Mapping[str, object],
    scenarios: Mapping[str, Callable[[Any], None]],
    unsound: str,
    usual_rounds: int,
) -> click.Command:
    """Return the command that runs scenarios. Failover scenarios have a slave; in `unsound` the check must fail."""

    def play(name: str, rounds: int, rate: int, chance: random.Random) -> Verdict:
        slaves = int(name.endswith("failover"))
        role = {"role": "sync-master", "min_in_sync": 1} if slaves else {}
        brokers = LocalCluster(
            brokers=1, slaves=slaves, broker_options={**options, **role}, nameserver_options={"term_lease_s": 1.5}
        )
        with tempfile.TemporaryDirectory(prefix="faults-") as folder, brokers as cluster:
            tried = trial(name, cluster, Path(folder), chance, rate)
            try:
                verdict = tried.run(rounds, scenarios[name])
            finally:
                tried.close()
            for broker in cluster.brokers:
                broker.stop()
                check = [sys.executable, "-m", "minimq_broker", "check", str(broker.data_dir)]
                checked = subprocess.run(check, capture_output=True, text=True, check=False)
                if checked.returncode:
                    verdict.damaged += 1
                    verdict.find(checked.stdout, checked.stderr)
        return verdict

    @click.command()
    @click.option("--scenario", type=click.Choice(["all", *scenarios]), default="all")
    @click.option("--rounds", default=usual_rounds, show_default=True, help="Faults of each scenario.")
    @click.option("--rate", default=200, show_default=True, help="Messages per second.")
    @click.option("--seed", type=int, help="Repeats the choices of an earlier run, which printed it.")
    def main(scenario: str, rounds: int, rate: int, seed: int | None) -> None:
        """Run scenarios, and print the result of each as a line of JSON."""
        seed = secrets.randbelow(1 << 30) if seed is None else seed
        print(f"--seed={seed}", file=sys.stderr)
        as_expected = True
        for name in scenarios if scenario == "all" else [scenario]:
            began = time.monotonic()
            verdict = play(name, rounds, rate, random.Random(f"{seed}/{name}"))
            as_expected &= verdict.is_sound != (name == unsound)
            line = {"scenario": name, "rounds": rounds, "seconds": round(time.monotonic() - began), **asdict(verdict)}
            print(json.dumps(line), flush=True)
        sys.exit(not as_expected)

    return main
