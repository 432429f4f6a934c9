"""A deploy replaces the members of a group one after the other; the new ones filter otherwise, or read other topics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from minimq import Admin, ConsumeResult, LocalCluster, Message, MessageQueue, Producer, PullConsumer, PushConsumer
from minimq.consuming.received import ReceivedMessage
from minimq_common.errors import GroupConflict
from support.members import Log, Member
from support.waiting import wait_until

TIMEOUT_S = 40.0


@pytest.fixture
def added(admin: Admin, new_name: Callable[[], str]) -> Iterator[str]:
    """Name of a new topic that is on the second broker alone, with two queues."""
    name = new_name()
    admin.create_topic(name, queues=2, brokers=["broker-b"])
    yield name
    admin.delete_topic(name, if_exists=True)


# ---- filters ------------------------------------------------------------------------------------


def test_a_member_with_another_filter_reads_when_the_last_old_one_has_left(
    cluster: LocalCluster, topic: str, group: str, producer: Producer
) -> None:
    with (
        PullConsumer(cluster.nameserver, group=group) as old,
        PullConsumer(cluster.nameserver, group=group, start="earliest") as new,
    ):
        old.subscribe(topic, "red")
        wait_until(lambda: old.poll(0.1) == [] and len(old.assignment) == 8, TIMEOUT_S)
        new.subscribe(topic, "blue")

        def is_rejected() -> bool:
            try:
                return new.poll(0.1) != []
            except GroupConflict:
                return True

        wait_until(is_rejected, TIMEOUT_S)
        assert new.assignment == []
        old.close()
        wait_until(lambda: not is_rejected() and len(new.assignment) == 8, TIMEOUT_S)
        producer.send(Message(topic, b"for the new one", tag="blue"))
        [message] = wait_until(lambda: new.poll(0.1), TIMEOUT_S)
        assert message.body == b"for the new one"


# ---- topics -------------------------------------------------------------------------------------


def test_a_deploy_adds_a_topic_and_the_next_one_takes_it_away(
    cluster: LocalCluster, admin: Admin, topic: str, added: str, group: str, producer: Producer
) -> None:
    log = Log()
    sent: set[tuple[MessageQueue, int]] = set()

    def member(*topics: str) -> Member:
        def subscribe(consumer: PullConsumer) -> None:
            for name in topics[1:]:
                consumer.subscribe(name)

        return Member(cluster.nameserver, group, topics[0], log, subscribe, start="earliest")

    def send() -> None:
        for name in (topic, added):
            receipts = producer.send_many(Message(name, b"%d" % number) for number in range(40))
            sent.update((receipt.queue, receipt.queue_offset) for receipt in receipts)

    def shares(*members: Member) -> list[tuple[int, int]]:
        return [tuple(sum(queue.topic == name for queue in one.queues) for name in (topic, added)) for one in members]  # type: ignore[misc]

    with member(topic) as first, member(topic, added) as second:
        wait_until(lambda: shares(first, second) == [(4, 0), (4, 2)], TIMEOUT_S)
        send()
        wait_until(lambda: not log.missing(sent), TIMEOUT_S)
        found = admin.describe_group(group)
        assert found.topics_differ
        assert found.is_agreed
        assert {one.topics for one in found.members} == {(topic,), tuple(sorted((topic, added)))}
        first.leave()
        wait_until(lambda: shares(second) == [(8, 2)], TIMEOUT_S)
        with member(topic) as third:
            wait_until(lambda: shares(second, third) == [(4, 2), (4, 0)], TIMEOUT_S)
            second.leave()
            wait_until(lambda: shares(third) == [(8, 0)], TIMEOUT_S)
            owners = {item.queue.topic: item.owner for item in admin.describe_group(group).queues}
            assert owners == {topic: third.consumer.client_id, added: None}
        errors = [one.error for one in (first, second, third)]
    assert errors == [None, None, None]
    assert log.repeated == {}


def test_a_message_that_waits_for_another_try_comes_to_a_member_that_has_its_topic(
    cluster: LocalCluster, topic: str, added: str, group: str, producer: Producer
) -> None:
    """Another member that takes the message from the retry topic passes it on, and that is no try."""
    deliveries: list[int] = []
    read = threading.Event()
    strange: list[str] = []

    def reject_once(messages: list[ReceivedMessage]) -> ConsumeResult:
        deliveries.extend(message.delivery_count for message in messages)
        if len(deliveries) == 1:
            return ConsumeResult.RETRY_LATER
        read.set()
        return ConsumeResult.SUCCESS

    def note(messages: list[ReceivedMessage]) -> ConsumeResult:
        strange.extend(message.topic for message in messages)
        return ConsumeResult.SUCCESS

    def worker(number: int) -> PushConsumer:
        name = f"{group}-{number}"
        return PushConsumer(
            cluster.nameserver, group=group, client_id=name, start="earliest", retry_delays_s=(0.1,), max_deliveries=3
        )

    # Both take retries from both brokers.
    with worker(1) as new, worker(2) as old:
        old.subscribe(topic)
        old.start(note)
        new.subscribe(topic)
        new.subscribe(added)
        new.start(reject_once)
        wait_until(lambda: (len(old.assignment), len(new.assignment)) == (4, 6), TIMEOUT_S)
        producer.send(Message(added, b"bad"))

        assert read.wait(TIMEOUT_S)
    assert deliveries == [1, 2]
    assert strange == []
