"""That a pipeline has the effect of each message exactly once, whatever dies: it consumes and sends in transactions.

    .venv/bin/python bench/transaction_faults.py [--rounds 500] [--scenario all] [--seed N]

A round kills a worker, kills the broker, lets its slave take over, or makes one of them hang; meanwhile messages are
sent, and workers send a copy of each to two topics, in one transaction with what they have consumed. In the end each
message has to be in both topics once. The rounds are divided among the scenarios; those of "popped" have a
`SimpleConsumer`.
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
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import click
from group_run import started, wait_until

from minimq import Admin, LocalCluster, Message, MiniMQError, Producer, PullConsumer, SimpleConsumer
from minimq.local.server_process import BrokerProcess

SOURCE, LEFT, RIGHT = "source", "left", "right"
GROUP = "pipeline"
WORKERS = 3
#: A worker that hangs for longer has lost what it had.
LOST_S = 1.0
_PATIENCE_S = 120.0
_STEP_S = 0.02
_EXAMPLES = 10


@dataclass
class Verdict:
    """The content of the topics in the end.

    Attributes:
        sent: messages that were sent to the source.
        transactions: transactions that workers have committed.
        fenced: transactions that were refused, since somebody else had the messages.
        lost: messages that are missing in a topic.
        twice: messages that are in a topic more than once.
        torn: transactions of which one topic has a part and the other has none.
        damaged: stores with findings.
        examples: of what is wrong.
    """

    sent: int = 0
    transactions: int = 0
    fenced: int = 0
    lost: int = 0
    twice: int = 0
    torn: int = 0
    damaged: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """True if nothing is wrong."""
        return not (self.lost or self.twice or self.torn or self.damaged)


def work(nameserver: str, journal: Path, popped: bool, seed: int) -> None:
    """Consume, and send a copy of each message to two topics, until killed."""
    chance = random.Random(seed)
    consumer: Any = (
        SimpleConsumer(nameserver, group=GROUP, invisible_s=LOST_S)
        if popped
        else PullConsumer(nameserver, group=GROUP, auto_commit=False)
    )
    consumer.subscribe(SOURCE)
    with Producer(nameserver) as producer, journal.open("a", buffering=1) as told:
        while True:
            try:
                with producer.transaction(consumer) as tx:
                    messages = tx.receive(0.5, chance.choice([1, 20, 200]))
                    for message in messages:
                        tx.send(Message(LEFT, message.body))
                    time.sleep(chance.choice([0.0, 0.0, 0.0, 0.3]))  # so that faults meet it in the midst
                    if chance.random() < 0.05:
                        raise KeyError
                    for message in messages:
                        tx.send(Message(RIGHT, message.body))
                told.write("committed\n" if messages else "idle\n")
            except KeyError:
                told.write("rolled back\n")
            except MiniMQError as error:
                told.write(f"{error.code} {error.message.splitlines()[0]}\n")


def work_carelessly(nameserver: str, journal: Path, _: bool, __: int) -> None:
    """Do the same without transactions, until killed: shows that the check can fail."""
    with (
        Producer(nameserver) as producer,
        PullConsumer(nameserver, group=GROUP, auto_commit=False) as consumer,
        journal.open("a", buffering=1) as told,
    ):
        consumer.subscribe(SOURCE)
        while True:
            try:
                messages = consumer.poll(0.5, 20)
                for topic in (LEFT, RIGHT):
                    producer.send_many(Message(topic, message.body) for message in messages)
                    time.sleep(_STEP_S)
                consumer.commit()
                told.write("committed\n" if messages else "idle\n")
            except MiniMQError as error:
                told.write(f"{error.code}\n")


class Trial:
    """A cluster, workers and a producer, to which faults happen."""

    def __init__(
        self, cluster: LocalCluster, folder: Path, chance: random.Random, rate: int, *, popped: bool, careless: bool
    ) -> None:
        self.cluster = cluster
        self.chance = chance
        self._folder, self._rate, self._popped = folder, rate, popped
        self._work = work_carelessly if careless else work
        self._journals: list[Path] = []
        self._live: list[BaseProcess] = []
        self._sent = 0
        self._end = threading.Event()
        self._sending = threading.Thread(target=self._send)

    def run(self, rounds: int, disturb: Callable[[Trial], None]) -> Verdict:
        """Disturb what runs so many times, let everything be consumed, and judge."""
        self._sending.start()
        try:
            for _ in range(WORKERS):
                self.join()
            wait_until(lambda: all(path.stat().st_size for path in self._journals), "workers do not begin")
            for _ in range(rounds):
                time.sleep(self.chance.uniform(0.05, 0.7))
                disturb(self)
        finally:
            self._end.set()
            self._sending.join()
        wait_until(self._is_done, "not all messages are consumed", _PATIENCE_S)
        self.close()
        return self._judge()

    def close(self) -> None:
        """End the workers."""
        for process in self._live:
            process.kill()
            process.join()
        self._live.clear()

    def join(self) -> None:
        """Start a worker."""
        path = self._folder / f"worker-{len(self._journals):03d}"
        path.touch()
        self._journals.append(path)
        seed = self.chance.randrange(1 << 30)
        self._live.append(started(self._work, self.cluster.nameserver, path, self._popped, seed))

    def kill_worker(self) -> None:
        """Kill one, and start another one."""
        process = self._live.pop(self.chance.randrange(len(self._live)))
        process.kill()
        process.join()
        self.join()

    def pause_worker(self) -> None:
        """Let one hang for long enough to lose what it has, or not quite."""
        process = self.chance.choice(self._live)
        os.kill(process.pid or 0, signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.2, 3 * LOST_S))
        os.kill(process.pid or 0, signal.SIGCONT)

    def master(self) -> BrokerProcess:
        """Return who leads, as soon as somebody does."""
        found: list[BrokerProcess] = []

        def look() -> bool:
            found[:] = [broker for broker in self.cluster.brokers if broker.current_role in ("alone", "master")]
            return bool(found)

        wait_until(look, "nobody leads", _PATIENCE_S)
        return found[0]

    def kill_broker(self) -> None:
        """Kill the master, and start it again once its slave leads."""
        broker = self.master()
        broker.kill()
        if len(self.cluster.brokers) > 1:
            self.master()
        broker.start()
        self.cluster._wait_in_sync()

    def pause_broker(self) -> None:
        """Let the master hang for a while."""
        broker = self.master()
        broker.pause()
        time.sleep(self.chance.uniform(0.2, 2.0))
        broker.resume()

    def _send(self) -> None:
        with Producer(self.cluster.nameserver, send_timeout_s=_PATIENCE_S) as producer:
            while not self._end.wait(_STEP_S):
                count = max(1, int(self._rate * _STEP_S))
                futures = [
                    producer.send_async(Message(SOURCE, b"%d" % number))
                    for number in range(self._sent, self._sent + count)
                ]
                for future in futures:
                    future.result()
                self._sent += count

    def _is_done(self) -> bool:
        try:
            with Admin(self.cluster.nameserver) as admin:
                return admin.describe_group(GROUP).lag == 0
        except MiniMQError:
            return False

    def _judge(self) -> Verdict:
        lines = Counter(line.split()[0] for path in self._journals for line in path.read_text().splitlines())
        print(dict(lines), file=sys.stderr)
        verdict = Verdict(self._sent, lines["committed"], lines["FENCED"])
        left, right = (Counter(stored(self.cluster, topic)) for topic in (LEFT, RIGHT))
        for number in range(self._sent):
            body = b"%d" % number
            counts = left[body], right[body]
            verdict.lost += counts[0] == 0 or counts[1] == 0
            verdict.twice += counts[0] > 1 or counts[1] > 1
            verdict.torn += counts[0] != counts[1]
            if counts != (1, 1) and len(verdict.examples) < _EXAMPLES:
                verdict.examples.append(f"message {number} is {counts[0]} times in one topic, {counts[1]} in the other")
        return verdict


def stored(cluster: LocalCluster, topic: str) -> list[bytes]:
    """Return the bodies of all messages of a topic."""
    with Admin(cluster.nameserver) as admin, PullConsumer(cluster.nameserver) as reader:
        queues = admin.describe_topic(topic).queues
        total = sum(each.messages for each in queues)
        reader.assign(each.queue for each in queues)
        found: list[bytes] = []
        while len(found) < total:
            found += [message.body for message in reader.poll(10.0)]
        return found


def kill(trial: Trial) -> None:
    """A worker dies, or the broker does, which has no slave."""
    (trial.kill_worker if trial.chance.random() < 0.6 else trial.kill_broker)()


def failover(trial: Trial) -> None:
    """The master dies, and its slave takes over; or a worker dies."""
    (trial.kill_worker if trial.chance.random() < 0.4 else trial.kill_broker)()


def hang(trial: Trial) -> None:
    """A worker, or the broker, hangs for a while; or a worker dies."""
    trial.chance.choice([trial.pause_worker, trial.pause_worker, trial.pause_broker, trial.kill_worker])()


def careless(trial: Trial) -> None:
    """Workers die that work without transactions."""
    trial.kill_worker()


SCENARIOS = {
    f"{kind}{name}": disturb
    for kind in ("", "popped-")
    for name, disturb in (("kill", kill), ("failover", failover), ("hang", hang))
} | {"careless": careless}


def run(name: str, rounds: int, rate: int, chance: random.Random) -> Verdict:
    """Run a scenario from an empty directory to the verdict."""
    options: dict[str, object] = {"session_grace_s": LOST_S, "session_timeout_s": 2 * LOST_S}
    slaves = int(name.endswith("failover"))
    if slaves:
        options |= {"role": "sync-master", "min_in_sync": 1}
    with (
        tempfile.TemporaryDirectory(prefix="transaction-faults-") as folder,
        LocalCluster(
            brokers=1, slaves=slaves, broker_options=options, nameserver_options={"term_lease_s": 1.5}
        ) as cluster,
    ):
        popped, careless = name.startswith("popped"), name == "careless"
        trial = Trial(cluster, Path(folder), chance, rate, popped=popped, careless=careless)
        with Admin(cluster.nameserver) as admin:
            for topic in (SOURCE, LEFT, RIGHT):
                admin.create_topic(topic, queues=2)
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
                verdict.examples += [checked.stdout, checked.stderr]
        return verdict


@click.command()
@click.option("--scenario", type=click.Choice(["all", *SCENARIOS]), default="all")
@click.option("--rounds", default=500, help="Faults of all scenarios together.")
@click.option("--rate", default=200, help="Messages per second.")
@click.option("--seed", type=int)
def main(scenario: str, rounds: int, rate: int, seed: int | None) -> None:
    """Run scenarios, and print what the topics have in the end, as a line of JSON each."""
    seed = secrets.randbelow(1 << 30) if seed is None else seed
    print(f"--seed={seed}", file=sys.stderr)
    sound = True
    names = [name for name in SCENARIOS if name != "careless"] if scenario == "all" else [scenario]
    for number, name in enumerate(names):
        share = (rounds * (number + 1)) // len(names) - (rounds * number) // len(names)
        began = time.monotonic()
        verdict = run(name, share, rate, random.Random(f"{seed}/{name}"))
        sound &= verdict.is_sound != (name == "careless")
        line = {"scenario": name, "rounds": share, "seconds": round(time.monotonic() - began), **asdict(verdict)}
        print(json.dumps(line), flush=True)
    sys.exit(not sound)


if __name__ == "__main__":
    main()
