"""Callbacks about queues that come and go: their order, their thread, and the commit that follows."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq.consuming import group_member, queue_reader
from minimq_common.errors import Fenced
from support.group_listener import QueueLog
from support.members import Log, Member, shared_evenly
from support.waiting import wait_until

TIMEOUT_S = 40.0


def polled(*consumers: PullConsumer) -> Callable[[Callable[[], bool]], Callable[[], bool]]:
    """Return a way to poll consumers, in this thread, each time before a condition is looked at."""

    def polling(condition: Callable[[], bool]) -> Callable[[], bool]:
        def poll_and_look() -> bool:
            for consumer in consumers:
                consumer.poll(0.05)
            return condition()

        return poll_and_look

    return polling


def test_queues_are_assigned_before_their_first_message_and_revoked_before_their_last_commit(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    told = QueueLog()
    committed_at_revoke: dict[MessageQueue, int] = {}

    def look(kind: str, queues: Sequence[MessageQueue]) -> None:
        if kind == "revoked":
            offsets = admin.committed_offsets(group, topic)
            committed_at_revoke.update({queue: offsets[queue] for queue in queues})

    told.then = look
    with Producer(cluster.nameserver) as producer:
        for queue in admin.route(topic).write_queues():
            producer.send_many([Message(topic, b"%d" % number) for number in range(100)], queue=queue)
    with PullConsumer(cluster.nameserver, group=group, commit_interval_s=0, **told.options) as consumer:
        consumer.subscribe(topic)
        read: set[MessageQueue] = set()
        count = 0

        def all_read() -> bool:
            nonlocal count
            messages = consumer.poll(0.2)
            assert {message.queue for message in messages} <= set(told.queues("assigned"))
            read.update(message.queue for message in messages)
            count += len(messages)
            return count == 800

        wait_until(all_read, TIMEOUT_S)
        assert len(read) == 8
        assert set(told.queues("assigned")) == set(consumer.assignment)
        assert told.queues("revoked") == told.queues("lost") == []

    assert sorted(told.queues("revoked")) == sorted(read)
    assert set(committed_at_revoke.values()) == {0}, "the last commit came before the callback"
    assert sum(admin.committed_offsets(group, topic).values()) == 800
    assert all(told.kinds(queue) == ["assigned", "revoked"] for queue in read)


def test_a_callback_that_fails_does_not_break_the_hand_over(
    cluster: LocalCluster, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    told = QueueLog()

    def fail(kind: str, queues: Sequence[MessageQueue]) -> None:
        raise RuntimeError(f"{kind} as told")

    told.then = fail
    log = Log()
    with Member(cluster.nameserver, group, topic, log, **told.options) as first:
        wait_until(lambda: len(first.queues) == 8, TIMEOUT_S)
        with Member(cluster.nameserver, group, topic, log) as second:
            wait_until(shared_evenly(first, second, queues=8), TIMEOUT_S)
        assert (first.error, second.error) == (None, None)
    assert "assigned as told" in caplog.text
    assert "revoked as told" in caplog.text


def test_a_consumer_may_begin_elsewhere_in_on_assigned(cluster: LocalCluster, topic: str, group: str) -> None:
    with Producer(cluster.nameserver) as producer:
        queue = producer.send(Message(topic, b"0")).queue
        producer.send_many([Message(topic, b"%d" % number) for number in range(1, 10)], queue=queue)

    def seek(queues: Sequence[MessageQueue]) -> None:
        if queue in queues:
            consumer.seek(queue, 7)

    consumer = PullConsumer(cluster.nameserver, group=group, on_assigned=seek)
    with consumer:
        consumer.subscribe(topic)
        messages = wait_until(lambda: consumer.poll(0.1), TIMEOUT_S)
    assert [message.body for message in messages] == [b"7", b"8", b"9"]


def test_a_queue_whose_messages_take_too_long_is_lost_and_its_commit_rejected(
    cluster: LocalCluster, topic: str, group: str
) -> None:
    told = QueueLog()
    with Producer(cluster.nameserver) as producer:
        producer.send_many(Message(topic, b"%d" % number) for number in range(200))
    with PullConsumer(
        cluster.nameserver, group=group, revoke_timeout_s=0.3, client_id=f"a-{group}", auto_commit=False, **told.options
    ) as slow:
        slow.subscribe(topic)
        wait_until(polled(slow)(lambda: len(slow.assignment) == 8), TIMEOUT_S)
        with PullConsumer(cluster.nameserver, group=group, client_id=f"b-{group}") as other:
            other.subscribe(topic)
            wait_until(polled(other)(lambda: len(other.assignment) == 4), TIMEOUT_S)
            lost = other.assignment

            with pytest.raises(Fenced, match="no longer belongs to this consumer"):
                slow.commit({lost[0]: 1})
            assert told.queues("lost") == [], "callbacks run in poll alone"
            slow.poll(0)
            assert sorted(told.queues("lost")) == lost
            assert [told.kinds(queue) for queue in lost] == [["assigned", "lost"]] * 4


@pytest.mark.fault
def test_the_queues_of_a_broker_that_is_silent_are_lost_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_member, "HEARTBEAT_INTERVAL_S", 0.2)
    monkeypatch.setattr(group_member, "LEASE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(queue_reader, "LONG_POLL_S", 0.2)
    told = QueueLog()
    with LocalCluster(brokers=2, data_dir=tmp_path) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("t", queues=2)
        with (
            Producer(cluster.nameserver) as producer,
            PullConsumer(cluster.nameserver, group="g", **told.options) as consumer,
        ):
            consumer.subscribe("t")
            wait_until(polled(consumer)(lambda: len(consumer.assignment) == 4), TIMEOUT_S)
            hanging = cluster.brokers[1]
            assert hanging.pid is not None
            os.kill(hanging.pid, signal.SIGSTOP)
            try:
                wait_until(polled(consumer)(lambda: len(consumer.assignment) == 2), TIMEOUT_S)
                lost = told.queues("lost")
                assert {queue.broker_name for queue in lost} == {hanging.name}
                assert len(lost) == 2
            finally:
                os.kill(hanging.pid, signal.SIGCONT)
            wait_until(polled(consumer)(lambda: len(consumer.assignment) == 4), TIMEOUT_S)
            assert [told.kinds(queue) for queue in lost] == [["assigned", "lost", "assigned"]] * 2
            receipt = producer.send(Message("t", b"x"), queue=lost[0])
            messages = wait_until(lambda: consumer.poll(0.1), TIMEOUT_S)
            assert [message.queue_offset for message in messages] == [receipt.queue_offset]
