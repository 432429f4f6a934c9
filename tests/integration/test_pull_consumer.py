"""The promises of a pull consumer about commits, closing and rejections, with real servers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq.rebalance.strategies import AveragelyByCircle
from minimq_common.errors import Closed, Fenced, GroupConflict
from support.waiting import wait_until

TIMEOUT_S = 40.0
COUNT = 200


@pytest.fixture
def queue(cluster: LocalCluster, topic: str) -> MessageQueue:
    """A queue with messages."""
    with Producer(cluster.nameserver) as producer:
        found = producer.send(Message(topic, b"0")).queue
        producer.send_many([Message(topic, b"%d" % number) for number in range(1, COUNT)], queue=found)
    return found


@pytest.fixture
def consumer(cluster: LocalCluster, topic: str, queue: MessageQueue, group: str) -> Iterator[PullConsumer]:
    """A consumer that commits when it is told to."""
    with PullConsumer(
        cluster.nameserver, group=group, auto_commit=False, client_id=f"a-{group}", revoke_timeout_s=0.3
    ) as made:
        made.subscribe(topic)
        yield made


def poll(consumer: PullConsumer, most: int) -> list[int]:
    messages = wait_until(lambda: consumer.poll(0.1, max_messages=most), TIMEOUT_S)
    return [int(message.body) for message in messages]


# ---- committing ---------------------------------------------------------------------------------


def take_away(cluster: LocalCluster, topic: str, queue: MessageQueue, consumer: PullConsumer) -> PullConsumer:
    """Return another member of the group, which has got the queue, since the consumer does not poll."""
    first = "0" if queue.broker_name == "broker-a" else "b"  # the first name gets the queues of the first broker
    other = PullConsumer(cluster.nameserver, group=consumer.group, client_id=f"{first}-{consumer.group}")
    other.subscribe(topic)

    def has_it() -> bool:
        other.poll(0.0)
        return queue in other.assignment

    wait_until(has_it, TIMEOUT_S)
    return other


def test_what_left_before_it_was_committed_is_told_once(
    cluster: LocalCluster, admin: Admin, topic: str, queue: MessageQueue, group: str, consumer: PullConsumer
) -> None:
    assert poll(consumer, 30) == list(range(30))
    wait_until(lambda: not consumer.poll(0.0, max_messages=1) or len(consumer.assignment) == 8, TIMEOUT_S)
    with take_away(cluster, topic, queue, consumer):
        wait_until(lambda: queue not in consumer.assignment, TIMEOUT_S)
        with pytest.raises(Fenced, match=rf"{queue} up to \d\d"):
            consumer.commit()
        consumer.commit()  # what is left is committed, and there is no more to tell


def test_a_loss_is_logged_at_the_end(
    cluster: LocalCluster, topic: str, queue: MessageQueue, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    with PullConsumer(cluster.nameserver, group=group, client_id=f"a-{group}", revoke_timeout_s=0.3) as consumer:
        consumer.subscribe(topic)
        assert poll(consumer, 30) == list(range(30))
        wait_until(lambda: not consumer.poll(0.0, max_messages=1) or len(consumer.assignment) == 8, TIMEOUT_S)
        with take_away(cluster, topic, queue, consumer):
            wait_until(lambda: queue not in consumer.assignment, TIMEOUT_S)
    logged = [record.getMessage() for record in caplog.records if f"{queue} up to" in record.getMessage()]
    assert len(logged) == 1


# ---- closing ------------------------------------------------------------------------------------


@pytest.mark.fault
def test_closing_ends_a_poll_of_another_thread(consumer: PullConsumer) -> None:
    wait_until(lambda: consumer.poll(0.1) or True, TIMEOUT_S)
    consumer.pause(consumer.assignment)
    with ThreadPoolExecutor(1) as thread:
        polling = thread.submit(consumer.poll, 10 * TIMEOUT_S)
        consumer.close()
        with pytest.raises(Closed):
            polling.result(TIMEOUT_S)


# ---- rejections -----------------------------------------------------------------------------------


def test_a_member_that_is_rejected_hears_of_it_until_the_group_takes_it(
    cluster: LocalCluster, topic: str, queue: MessageQueue, group: str
) -> None:
    with PullConsumer(cluster.nameserver, group=group) as first:
        first.subscribe(topic)
        wait_until(lambda: first.poll(0.1) == [] and len(first.assignment) == 8, TIMEOUT_S)
        with PullConsumer(cluster.nameserver, group=group, allocation=AveragelyByCircle()) as other:
            other.subscribe(topic)

            def is_rejected() -> bool:
                try:
                    return other.poll(0.1) != []
                except GroupConflict:
                    return True

            wait_until(is_rejected, TIMEOUT_S)
            for _ in range(20):
                with pytest.raises(GroupConflict):
                    other.poll(0.05)
            first.close()

            def is_taken() -> bool:
                try:
                    other.poll(0.1)
                except GroupConflict:
                    return False
                return len(other.assignment) == 8

            wait_until(is_taken, TIMEOUT_S)
            other.poll(0.0)
