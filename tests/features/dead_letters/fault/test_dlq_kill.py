"""`minimq dlq resend` is killed with SIGKILL at random moments and run again: each dead letter is resent once."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
from minimq_common.names import dead_letter_topic
from support.chance import SEED, rounds
from support.command import COMMAND, environment
from support.reading import read_all
from support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.rounds]

KILLS = rounds(2)
#: Of each broker. A transaction takes 1,000 of one of them.
LETTERS = 2500
DEAD = dead_letter_topic("g")
TIMEOUT_S = 60.0


@pytest.mark.timeout(120 + 20 * KILLS)
def test_each_is_resent_once(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    wanted: Counter[bytes] = Counter()
    with (
        LocalCluster(brokers=2, data_dir=tmp_path) as cluster,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver) as producer,
    ):
        admin.create_topic("t", queues=2)
        admin.create_topic(DEAD, queues=1)

        def bury() -> None:
            """Add dead letters to both brokers."""
            for broker in ("broker-a", "broker-b"):
                bodies = [b"%d" % (len(wanted) + number) for number in range(LETTERS)]
                properties = {"RETRY_TOPIC": "t", "ORIGIN_QUEUE": f"t/{broker}/1", "ORIGIN_OFFSET": "1"}
                messages = [Message(DEAD, body, properties=properties) for body in bodies]
                producer.send_many(messages, queue=MessageQueue(DEAD, broker, 0))
                wanted.update(bodies)

        def resent() -> int:
            return sum(queue.messages for queue in admin.describe_topic("t").queues)

        def is_due(command: subprocess.Popen[bytes], moment: int) -> bool:
            return resent() >= moment or command.poll() is not None

        for number in range(KILLS):
            if number % 2 == 0:
                bury()
            moment = chance.randint(resent(), len(wanted))
            with subprocess.Popen(
                [*COMMAND, "dlq", "resend", "g", "--all"],
                env=environment(MINIMQ_NAMESERVER=cluster.nameserver),
                stdout=subprocess.DEVNULL,
            ) as command:
                # A transaction is published at a time, so this is the end of one: what follows is the next.
                wait_until(partial(is_due, command, moment), TIMEOUT_S)
                time.sleep(chance.uniform(0.0, 0.1))  # a random moment, not a wait for something
                command.kill()
            left = sum(count.count for count in admin.count_dead_letters("g"))
            assert len(list(admin.dead_letters("g"))) == left
        before = sum(count.count for count in admin.count_dead_letters("g"))
        assert admin.resend_dead_letters("g") <= before  # what was decided and not published yet counts for the other
        assert admin.count_dead_letters("g") == []
        assert admin.resend_dead_letters("g") == 0
        assert Counter(message.body for message in read_all(cluster.nameserver, "t")) == wanted
