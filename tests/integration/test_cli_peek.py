"""`minimq peek`, and consumers without a group: they look, and leave no trace."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from minimq.admin.admin import Admin
from minimq.consumer import PullConsumer
from minimq.local.local_cluster import LocalCluster
from minimq.producer import Producer
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message, MessageQueue
from support.command import Minimq
from support.waiting import wait_until

TIMEOUT_S = 40.0


@pytest.fixture
def minimq(cluster: LocalCluster) -> Minimq:
    return Minimq(cluster.nameserver)


@pytest.fixture
def numbers(cluster: LocalCluster, admin: Admin, new_name: Callable[[], str]) -> str:
    """Return a topic with 5 messages in each of two queues, stored one after the other."""
    name = new_name()
    admin.create_topic(name, queues=1)
    with Producer(cluster.nameserver) as producer:
        for number in range(10):
            queue = MessageQueue(name, "broker-a" if number % 2 else "broker-b", 0)
            producer.send(Message(name, b"%d" % number), queue=queue)
            time.sleep(0.002)  # what two brokers store in the same ms has no order
    return name


def test_a_peek_shows_what_is_asked_for_and_leaves_no_group(minimq: Minimq, numbers: str, admin: Admin) -> None:
    groups = admin.list_groups()
    assert minimq("peek", numbers).split() == list("0123456789")
    assert minimq("peek", numbers, "-n", "3").split() == list("789")
    assert minimq("peek", numbers, "--queue", "broker-a:0", "--offset", "2").split() == list("579")
    assert minimq("peek", numbers, "--from", "-1h").split() == list("0123456789")
    [line] = minimq("peek", numbers, "--from", "earliest", "--limit", "1", "--output", "json").splitlines()
    assert json.loads(line)["offset"] == 0
    assert f"{numbers}/broker-" in minimq("peek", numbers, "-o", "table", "-n", "1")
    assert set(admin.list_groups()) <= set(groups)  # those of other tests may end meanwhile


def test_a_peek_shows_the_message_at_an_address(minimq: Minimq, numbers: str) -> None:
    assert minimq("peek", f"{numbers}/broker-a/0@1") == "3\n"
    lines = minimq("peek", f"{numbers}/broker-a/0@1", "-o", "table").splitlines()
    assert (lines[0].split(), lines[-1]) == (["address", f"{numbers}/broker-a/0@1"], "3")


def test_a_peek_follows_until_it_has_enough(minimq: Minimq, numbers: str, cluster: LocalCluster) -> None:
    at = ("--queue", "broker-a:0", "--offset", "3")
    with minimq.running("peek", numbers, *at, "--follow", "-n", "3", "--tags", "*") as peeking:
        assert peeking.stdout is not None
        assert [peeking.stdout.readline() for _ in range(2)] == [b"7\n", b"9\n"]
        with Producer(cluster.nameserver) as producer:
            producer.send(Message(numbers, b"new"), queue=MessageQueue(numbers, "broker-a", 0))
        assert peeking.stdout.read() == b"new\n"
        assert peeking.wait(TIMEOUT_S) == 0


def test_a_consumer_without_a_group_reads_and_commits_nothing(
    cluster: LocalCluster, admin: Admin, numbers: str
) -> None:
    groups = admin.list_groups()
    queue = MessageQueue(numbers, "broker-a", 0)
    with PullConsumer(cluster.nameserver, start="earliest") as consumer:
        with pytest.raises(InvalidArgument, match="without a group can only be assigned queues"):
            consumer.subscribe(numbers)
        consumer.assign([queue])
        messages = wait_until(lambda: consumer.poll(0.1), TIMEOUT_S)
        assert messages[0].body == b"1"
        with pytest.raises(InvalidArgument, match="without a group commits nothing"):
            consumer.commit()
        consumer.seek(queue, "latest")
        assert consumer.position(queue) == 5
    assert set(admin.list_groups()) <= set(groups)  # those of other tests may end meanwhile
