"""Push consumers with real servers: what they are given, how far the group is, how they close."""

from __future__ import annotations

import threading
import time

import pytest

from minimq import Admin, ConsumeResult, LocalCluster, Message, Producer, PushConsumer, ReceivedMessage, RetryLater
from minimq.features.listeners.push_consumer import Mode
from minimq_common.errors import GroupConflict, InvalidArgument
from support.listening import Listener
from support.waiting import wait_until

TIMEOUT_S = 40.0


def send(producer: Producer, topic: str, count: int) -> None:
    producer.send_many(Message(topic, b"%d" % number) for number in range(count))


def fail_on(body: bytes) -> Listener:
    return Listener(lambda message, _: ConsumeResult.RETRY_LATER if message.body == body else ConsumeResult.SUCCESS)


@pytest.mark.parametrize("mode", ["queues", "work_queue"])
def test_it_is_ready_from_its_start_to_its_end(cluster: LocalCluster, topic: str, group: str, mode: Mode) -> None:
    consumer = PushConsumer(cluster.nameserver, group=group, mode=mode)
    consumer.subscribe(topic)
    assert not consumer.is_ready
    consumer.start(Listener())
    wait_until(lambda: consumer.is_ready, TIMEOUT_S)
    consumer.close()
    assert not consumer.is_ready


@pytest.mark.parametrize("mode", ["queues", "work_queue"])
def test_while_its_group_rejects_it_it_is_not_ready_and_says_so_once(
    cluster: LocalCluster, admin: Admin, topic: str, group: str, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    def seen_by() -> list[tuple[str, ...]]:
        return [member.seen_by for member in admin.describe_group(group).members]

    first, second = (PushConsumer(cluster.nameserver, group=group, mode=mode) for _ in range(2))
    with second:
        with first:
            first.subscribe(topic)
            first.start(Listener())
            wait_until(lambda: first.is_ready and seen_by() == [("broker-a", "broker-b")], TIMEOUT_S)
            second.subscribe(topic, "another-tag")
            second.start(Listener())
            wait_until(lambda: isinstance(second.error, GroupConflict), TIMEOUT_S)
            error = second.error
            wait_until(lambda: second.error is not error or mode == "queues", TIMEOUT_S)
            assert not second.is_ready
            assert len([each for each in caplog.records if "cannot take" in each.message]) == 1
        wait_until(lambda: second.is_ready and second.error is None, TIMEOUT_S)


def test_closing_does_not_wait_longer_than_told_and_what_runs_stays_uncommitted(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str, group: str
) -> None:
    running, go_on = threading.Event(), threading.Event()

    def listen(_: list[ReceivedMessage]) -> ConsumeResult:
        running.set()
        go_on.wait(TIMEOUT_S)
        return ConsumeResult.SUCCESS

    queue = producer.send(Message(topic, b"x")).queue
    consumer = PushConsumer(cluster.nameserver, group=group)
    consumer.subscribe(topic)
    consumer.start(listen)
    assert running.wait(TIMEOUT_S)
    began = time.monotonic()
    consumer.close(timeout=0.2)
    assert time.monotonic() - began < 25.0
    go_on.set()
    assert admin.committed_offsets(group, topic)[queue] == 0


def test_closing_does_not_wait_for_messages_that_wait_for_another_try_here(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str, group: str
) -> None:
    listener = fail_on(b"bad")
    queue = producer.send(Message(topic, b"good-0")).queue
    producer.send_many([Message(topic, b"bad"), Message(topic, b"good-1")], queue=queue)
    consumer = PushConsumer(cluster.nameserver, group=group, batch_size=1, orderly=True, retry_delays_s=(30.0,))
    consumer.subscribe(topic)
    consumer.start(listener)
    wait_until(lambda: listener.calls[b"bad"] == 1, TIMEOUT_S)
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 25.0
    assert listener.calls[b"good-1"] == 0
    assert admin.committed_offsets(group, topic)[queue] == 1


def test_wrong_usage_is_named(cluster: LocalCluster, topic: str, group: str) -> None:
    with PushConsumer(cluster.nameserver, group=group) as consumer:
        with pytest.raises(InvalidArgument, match="nothing is subscribed to"):
            consumer.start(Listener())
        consumer.subscribe(topic)
        consumer.start(Listener())
        with pytest.raises(InvalidArgument, match="was started before"):
            consumer.start(Listener())
        with pytest.raises(InvalidArgument, match="before the first message"):
            consumer.subscribe("another")
    with pytest.raises(InvalidArgument):
        PushConsumer(cluster.nameserver, group=group, threads=0)
    with pytest.raises(InvalidArgument, match="retry_delays_s"):
        PushConsumer(cluster.nameserver, group=group, retry_delays_s=())
    with pytest.raises(InvalidArgument, match="max_deliveries"):
        PushConsumer(cluster.nameserver, group=group, max_deliveries=0)
    with pytest.raises(InvalidArgument, match="whole number"):
        RetryLater(level=-1)
