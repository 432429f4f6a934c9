"""Names with dots, and empty bodies, everywhere where a topic or a group is named and a body is sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer, PushConsumer, WorkQueueConsumer
from minimq.consuming.received import ReceivedMessage
from minimq.features.listeners.listener import ConsumeResult
from support.command import Minimq
from support.waiting import wait_until

TIMEOUT_S = 40.0


@pytest.fixture(scope="session")
def minimq(cluster: LocalCluster) -> Minimq:
    return Minimq(cluster.nameserver)


@pytest.fixture
def dotted(new_name: Callable[[], str]) -> str:
    return f"shop.{new_name()}.v1"


def test_a_topic_and_its_groups_have_dots(cluster: LocalCluster, admin: Admin, dotted: str, minimq: Minimq) -> None:
    """Through sending, all consumers, retries, dead letters, the search and the command."""
    group = f"{dotted}.billing"
    admin.create_topic(dotted, queues=1)
    assert dotted in admin.list_topics()
    with Producer(cluster.nameserver) as producer:
        receipt = producer.send(Message(dotted, b"order", keys=["o.1"]))

    def reject(_: list[ReceivedMessage]) -> ConsumeResult:
        raise ValueError

    with PushConsumer(cluster.nameserver, group=group, max_deliveries=1) as pusher:
        pusher.subscribe(dotted)
        pusher.start(reject)
        wait_until(lambda: admin.count_dead_letters(group), TIMEOUT_S)
    [letter] = admin.dead_letters(group)
    assert (letter.topic, letter.group, letter.origin_queue) == (dotted, group, receipt.queue)
    assert admin.resend_dead_letters(group) == 1
    with WorkQueueConsumer(cluster.nameserver, group=f"{group}.pop") as simple:
        simple.subscribe(dotted)
        [first] = wait_until(lambda: simple.receive(1, timeout=1.0), TIMEOUT_S)
        assert first.body == b"order"
        simple.ack(first)
    assert admin.describe_group(group).dead_letters
    assert minimq("peek", f"{receipt.queue}@{receipt.queue_offset}", stdin=b"").endswith("order\n")
    assert dotted in minimq("group", "describe", group, stdin=b"")
    admin.delete_group(group, dead_letters=True)
    admin.delete_topic(dotted)
    assert dotted not in admin.list_topics()


def test_broadcasting_keeps_offsets_of_a_group_with_dots(
    cluster: LocalCluster, admin: Admin, dotted: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("offsets")
    admin.create_topic(dotted, queues=1)
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(dotted, b"x"))
    with PullConsumer(
        cluster.nameserver, group=f"..{dotted}", client_id="..", broadcast_dir=str(folder), start="earliest"
    ) as consumer:
        consumer.subscribe(dotted)
        wait_until(lambda: consumer.poll(0.5), TIMEOUT_S)
    assert [path.name for path in folder.iterdir()] == [f"..{dotted}"]
