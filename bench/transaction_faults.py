"""Checks under faults that a pipeline which consumes and sends in transactions processes each message exactly once.

    .venv/bin/python bench/transaction_faults.py [--rounds 80] [--scenario all] [--seed N]

A round kills a worker, kills the broker, lets its slave take over, or makes one of them hang. Meanwhile messages are
sent, and workers send a copy of each to two topics, in one transaction with the consumed messages. At the end each
message must be in both topics once. The "popped" scenarios use a `WorkQueueConsumer`.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_trial import Trial, Verdict, command

from minimq import Admin, LocalCluster, Message, MinimqError, Producer, PullConsumer, WorkQueueConsumer

SOURCE, LEFT, RIGHT = "source", "left", "right"
GROUP = "pipeline"
#: A worker that hangs for longer loses its messages to others.
LOST_S = 1.0
_STEP_S = 0.02


@dataclass
class PipelineVerdict(Verdict):
    """The contents of the topics at the end."""

    #: Transactions that workers committed, and those rejected because another worker had the messages.
    transactions: int = 0
    fenced: int = 0
    #: Messages stored more than once in a topic, and those stored more often in one topic than in the other.
    twice: int = 0
    torn: int = 0

    WRONG = ("lost", "twice", "torn", "damaged")


def work(nameserver: str, journal: Path, seed: int, popped: bool) -> None:
    """Consume, and send a copy of each message to two topics, until killed."""
    chance = random.Random(seed)
    consumer: Any = (
        WorkQueueConsumer(nameserver, group=GROUP, invisible_s=LOST_S)
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
                    time.sleep(chance.choice([0.0, 0.0, 0.0, 0.3]))  # so that faults hit open transactions
                    if chance.random() < 0.05:
                        raise KeyError
                    for message in messages:
                        tx.send(Message(RIGHT, message.body))
                told.write("committed\n" if messages else "idle\n")
            except KeyError:
                told.write("rolled back\n")
            except MinimqError as error:
                told.write(f"{error.code} {error.message.splitlines()[0]}\n")


def work_carelessly(nameserver: str, journal: Path, _: int, __: bool) -> None:
    """Do the same as `work` without transactions: shows that the check can fail."""
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
            except MinimqError as error:
                told.write(f"{error.code}\n")


class PipelineTrial(Trial):
    """Workers that copy each message to two topics."""

    group, topic = GROUP, SOURCE
    WORKERS = 3

    def prepare(self, admin: Admin) -> None:
        for topic in (SOURCE, LEFT, RIGHT):
            admin.create_topic(topic, queues=2)

    def worker(self, name: str, journal: Path, seed: int) -> tuple[Callable[..., None], tuple[object, ...]]:
        is_popped = self.name.startswith("popped")
        return work_carelessly if self.name == "careless" else work, (self.cluster.nameserver, journal, seed, is_popped)

    def judge(self) -> Verdict:
        lines = Counter(line.split()[0] for path in self.journals.values() for line in path.read_text().splitlines())
        print(dict(lines), file=sys.stderr)
        verdict = PipelineVerdict(self.sent, transactions=lines["committed"], fenced=lines["FENCED"])
        left, right = (Counter(stored(self.cluster, topic)) for topic in (LEFT, RIGHT))
        for number in range(self.sent):
            body = b"%d" % number
            counts = left[body], right[body]
            verdict.lost += counts[0] == 0 or counts[1] == 0
            verdict.twice += counts[0] > 1 or counts[1] > 1
            verdict.torn += counts[0] != counts[1]
            if counts != (1, 1):
                verdict.find(f"message {number} is {counts[0]} times in one topic, {counts[1]} in the other")
        return verdict


def stored(cluster: LocalCluster, topic: str) -> list[bytes]:
    with Admin(cluster.nameserver) as admin, PullConsumer(cluster.nameserver) as reader:
        queues = admin.describe_topic(topic).queues
        total = sum(each.messages for each in queues)
        reader.assign(each.queue for each in queues)
        found: list[bytes] = []
        while len(found) < total:
            found += [message.body for message in reader.poll(10.0)]
        return found


def kill(trial: PipelineTrial) -> None:
    """Kill a worker, or the broker, which has no slave."""
    (trial.kill_worker if trial.chance.random() < 0.6 else trial.kill_broker)()


def failover(trial: PipelineTrial) -> None:
    """Kill the master, so that its slave takes over, or a worker."""
    (trial.kill_worker if trial.chance.random() < 0.4 else trial.kill_broker)()


def hang(trial: PipelineTrial) -> None:
    """Stop a worker or the broker for a while, or kill a worker."""
    what = trial.chance.random()
    if what < 0.5:
        trial.pause_worker(3 * LOST_S)
    elif what < 0.75:
        trial.pause_broker(2.0)
    else:
        trial.kill_worker()


def careless(trial: PipelineTrial) -> None:
    """Kill a worker; in this scenario they work without transactions."""
    trial.kill_worker()


SCENARIOS = {
    **{"kill": kill, "failover": failover, "hang": hang, "careless": careless},
    **{"popped-kill": kill, "popped-failover": failover, "popped-hang": hang},
}

if __name__ == "__main__":
    options = {"session_grace_s": LOST_S, "session_timeout_s": 2 * LOST_S}
    command(PipelineTrial, options, SCENARIOS, unsound="careless", usual_rounds=80)()
