"""Broadcasting: each consumer reads everything, and keeps its offsets in a file of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq_common.errors import DataDirectoryInUse, InvalidArgument, StoreError
from support.waiting import wait_until

TIMEOUT_S = 40.0


@pytest.fixture
def new_consumer(cluster: LocalCluster, group: str, tmp_path: Path) -> Callable[..., PullConsumer]:
    """Make a consumer that broadcasts, by client id."""

    def make(client_id: str, **options: Any) -> PullConsumer:
        return PullConsumer(
            cluster.nameserver, group=group, client_id=client_id, broadcast_dir=str(tmp_path), **options
        )

    return make


def send(cluster: LocalCluster, topic: str, first: int, count: int) -> set[bytes]:
    bodies = [b"%d" % number for number in range(first, first + count)]
    with Producer(cluster.nameserver) as producer:
        producer.send_many(Message(topic, body) for body in bodies)
    return set(bodies)


def read(consumer: PullConsumer, count: int) -> list[bytes]:
    """Return the bodies of so many messages."""
    found: list[bytes] = []

    def enough() -> bool:
        found.extend(message.body for message in consumer.poll(0.1))
        return len(found) >= count

    wait_until(enough, TIMEOUT_S)
    return found


def saved(path: Path) -> int:
    """Return the sum of the offsets in a file."""
    return sum(item["offset"] for item in json.loads(path.read_text()))


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_topic_that_was_made_anew_meanwhile_begins_where_the_rule_says(
    cluster: LocalCluster, admin: Admin, topic: str, new_consumer: Callable[..., PullConsumer], start: str
) -> None:
    send(cluster, topic, 0, 300)
    with new_consumer("one") as consumer:
        consumer.subscribe(topic)
        read(consumer, 300)
    admin.delete_topic(topic)
    admin.create_topic(topic, queues=4)
    anew = send(cluster, topic, 300, 100)
    with new_consumer("one", start=start) as consumer:
        consumer.subscribe(topic)
        if start == "earliest":
            assert set(read(consumer, 100)) == anew
        else:
            wait_until(
                lambda: not consumer.poll(0.05) and len(consumer.assignment) == 8 and consumer.at_end(), TIMEOUT_S
            )
    later = send(cluster, topic, 400, 50)
    with new_consumer("one", start=start) as consumer:
        consumer.subscribe(topic)
        assert set(read(consumer, 50)) == later, "the rule held once"


READER = """
import sys
from minimq import PullConsumer
consumer = PullConsumer(
    sys.argv[1], group=sys.argv[2], client_id="killed", broadcast_dir=sys.argv[4],
    commit_interval_s=0.01,
)
consumer.subscribe(sys.argv[3])
while True:
    for message in consumer.poll(0.1, max_messages=10):
        print(message.body.decode(), flush=True)
"""


@pytest.mark.fault
def test_a_consumer_that_is_killed_loses_nothing(
    cluster: LocalCluster, topic: str, group: str, new_consumer: Callable[..., PullConsumer], tmp_path: Path
) -> None:
    sent = send(cluster, topic, 0, 2000)
    process = subprocess.Popen(
        [sys.executable, "-c", READER, cluster.nameserver, group, topic, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    before: set[bytes] = set()
    for line in process.stdout:
        if not line.endswith("\n"):
            break
        before.add(line.strip().encode())
        if len(before) == 1000:
            wait_until(lambda: saved(tmp_path / group / "killed.json"), TIMEOUT_S)
            process.send_signal(signal.SIGKILL)
    process.wait(TIMEOUT_S)
    process.stdout.close()
    assert 0 < saved(tmp_path / group / "killed.json") <= len(before)
    with new_consumer("killed") as consumer:
        consumer.subscribe(topic)
        after: set[bytes] = set()

        def all_read() -> bool:
            after.update(message.body for message in consumer.poll(0.1))
            return before | after == sent

        wait_until(all_read, TIMEOUT_S)


def test_wrong_usage_is_named(
    cluster: LocalCluster, topic: str, group: str, new_consumer: Callable[..., PullConsumer], tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="needs a client_id"):
        PullConsumer(cluster.nameserver, group=group, broadcast_dir="offsets")
    with new_consumer("one") as consumer, new_consumer("one") as second:
        with pytest.raises(InvalidArgument, match="reads all queues"):
            consumer.assign([])
        consumer.subscribe(topic)
        consumer.poll(0)
        second.subscribe(topic)
        with pytest.raises(DataDirectoryInUse, match="give each its own client_id"):
            second.poll(0)
    (tmp_path / group / "one.json").write_text("[")
    with new_consumer("one") as third:
        third.subscribe(topic)
        with pytest.raises(
            StoreError, match=r"is not a valid file of offsets.*with 'latest' it skips those sent since"
        ):
            third.poll(0)
