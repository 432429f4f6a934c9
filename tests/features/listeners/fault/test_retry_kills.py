"""Consumers and their broker are killed with SIGKILL at random moments while messages fail: nothing is lost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq_common.errors import MinimqError
from support.chance import SEED, rounds
from support.command import environment
from support.server_copies import CommandCopy
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

KILLS = rounds(3)
MESSAGES = 40
MAX_DELIVERIES = 3
TIMEOUT_S = 90.0
OPTIONS = {
    "threads": 4,
    "batch_size": 4,
    "max_deliveries": MAX_DELIVERIES,
    "retry_delays_s": [0.05],
    "invisible_s": 1,
    "commit_interval_s": 0.1,
}


class Consumer:
    """A process whose listener logs each message, and fails those of the bodies "once..." and "bad..."."""

    def __init__(self, nameserver: str, log: Path) -> None:
        self._command = [
            sys.executable,
            "-m",
            "support.failing_listener",
            nameserver,
            "t",
            str(log),
            json.dumps(OPTIONS),
        ]
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return CommandCopy(self._command, stdin=subprocess.PIPE, env=environment())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.process = self._start()

    def close(self) -> None:
        self.process.communicate(timeout=TIMEOUT_S)


@pytest.mark.timeout(180 + 30 * KILLS)
def test_failed_messages_survive_kills_of_consumer_and_broker(tmp_path: Path) -> None:
    """Repeated deliveries are allowed only after a kill, which is why each round ends with messages that saw none."""
    chance, log = random.Random(SEED), tmp_path / "log"
    log.touch()
    sent: list[str] = []
    with (
        LocalCluster(brokers=1, data_dir=tmp_path / "data", broker_options={"session_grace_s": 0.2}) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver, send_timeout_s=30.0) as producer,
    ):
        admin.create_topic("t", queues=2)
        consumer = Consumer(cluster.nameserver, log)
        [broker] = cluster.brokers

        def send() -> set[str]:
            kinds = ("good", "once", "bad")
            bodies = [f"{kinds[number % 3]}-{len(sent) + number}" for number in range(MESSAGES)]
            producer.send_many(Message("t", body.encode()) for body in bodies)
            sent.extend(bodies)
            return set(bodies)

        def calls() -> Counter[str]:
            return Counter(line.split()[0] for line in log.read_text().splitlines())

        def dead() -> Counter[str]:
            return Counter(letter.body.decode() for letter in admin.dead_letters("t"))

        def all_over() -> bool:
            with suppress(MinimqError):  # the broker may not be ready
                described = admin.describe_group("t")
                bad = {body for body in sent if body.startswith("bad")}
                return not (described.lag or described.retrying) and dead().keys() == bad and calls().keys() >= {*sent}
            return False

        try:
            for _ in range(KILLS):
                send()
                time.sleep(chance.uniform(0.0, 0.6))  # a random moment, not a wait for something
                victims = chance.choice(["consumer", "broker", "consumer and broker"])
                if "consumer" in victims:
                    consumer.kill()
                if "broker" in victims:
                    broker.kill()
                    broker.start()
                wait_until(all_over, TIMEOUT_S, what="all messages finished or dead")
                quiet = send()
                wait_until(all_over, TIMEOUT_S, what="all messages finished or dead")
                times = {"good": 1, "once": 2, "bad": MAX_DELIVERIES}
                found = calls()
                assert {body: found[body] for body in quiet} == {body: times[body.split("-")[0]] for body in quiet}
                assert {body: count for body, count in dead().items() if body in quiet and count > 1} == {}
        finally:
            consumer.close()
