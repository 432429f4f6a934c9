"""Each operation over several brokers names a broker that is offline, hangs, or dies after it was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer, WorkQueueConsumer
from minimq.admin.operation import operations_of
from minimq.errors import MinimqError
from support.waiting import wait_until

TIMEOUT_S = 60.0
LOST = "broker-b"

pytestmark = [pytest.mark.fault, pytest.mark.system]

DELETE_GROUP = next(each for each in operations_of(Admin) if each.name == "group delete")

#: Each operation over several brokers. Those that change something come last.
OPERATIONS: dict[str, Callable[[Admin], Any]] = {
    "describe_topic": lambda admin: admin.describe_topic("t"),
    "describe_group": lambda admin: admin.describe_group("g"),
    "broker_status": lambda admin: admin.broker_status(),
    "dead_letters": lambda admin: list(admin.dead_letters("w")),
    "count_dead_letters": lambda admin: admin.count_dead_letters("w"),
    "count_dead_letters of all groups": lambda admin: admin.count_dead_letters(),
    "delete_group, plan": lambda admin: DELETE_GROUP.planned(admin, DELETE_GROUP.given(group="g")),
    "reset_offset": lambda admin: admin.reset_offset("g", "t", "earliest"),
    "update_topic": lambda admin: admin.update_topic("t", retention_s=3600),
    "resend_dead_letters": lambda admin: admin.resend_dead_letters("w"),
    "delete_dead_letters": lambda admin: admin.delete_dead_letters("w", all=True),
    "delete_group": lambda admin: admin.delete_group("g"),
    "delete_topic": lambda admin: admin.delete_topic("t"),
}


@pytest.fixture
def world() -> Iterator[tuple[LocalCluster, Admin]]:
    with LocalCluster(brokers=2) as cluster, Admin(cluster.nameserver, timeout_s=3) as admin:
        admin.create_topic("t", queues=1)
        with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver, group="g") as consumer:
            for broker in cluster.brokers:
                producer.send(Message("t", b"x"), queue=MessageQueue("t", broker.name, 0))
            consumer.subscribe("t")
            unread = {broker.name for broker in cluster.brokers}

            def is_read() -> bool:
                unread.difference_update(message.queue.broker_name for message in consumer.poll(0.1))
                return not unread

            wait_until(is_read, TIMEOUT_S)
            consumer.commit()
        with WorkQueueConsumer(cluster.nameserver, group="w") as worker:
            worker.subscribe("t")
            rejected = list[Any]()

            def reject() -> bool:
                messages = worker.receive(2, timeout=0.1)
                worker.reject(messages, "bad")
                rejected.extend(messages)
                return len(rejected) == 2

            wait_until(reject, TIMEOUT_S)
        yield cluster, admin


def outcome(call: Callable[[Admin], Any], admin: Admin) -> str:
    """Return the result or the error of an operation as text."""
    try:
        return repr(call(admin))
    except MinimqError as error:
        return f"{type(error).__name__}: {error.message}"


def names_it(name: str, text: str) -> None:
    assert LOST in text, f"{name} does not name {LOST}: {text}"


def test_a_broker_that_is_offline(world: tuple[LocalCluster, Admin]) -> None:
    cluster, admin = world
    cluster.server(LOST).kill()
    wait_until(admin.offline_brokers, TIMEOUT_S)
    for name, call in OPERATIONS.items():
        names_it(name, outcome(call, admin))


def test_a_broker_that_hangs(world: tuple[LocalCluster, Admin]) -> None:
    cluster, admin = world
    cluster.server(LOST).pause()
    for name, call in OPERATIONS.items():
        if (
            "dead_letters" not in name and "pattern" not in name
        ):  # these wait for half a minute, or check who is offline
            names_it(name, outcome(call, admin))
