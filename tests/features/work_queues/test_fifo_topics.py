"""FIFO topics: the messages of one message group are consumed in order, in one hand at a time, and others go on."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from minimq import (
    Admin,
    ConsumeResult,
    LocalCluster,
    Message,
    Permission,
    Producer,
    PushConsumer,
    ReceivedMessage,
    WorkQueueConsumer,
    by_hash,
)
from minimq.errors import InvalidArgument, TopicExists, TopicNotFound, Unavailable
from minimq.features.work_queues.work_queue_message import WorkQueueMessage
from support.command import Minimq
from support.waiting import wait_until

GROUPS = 100


@pytest.fixture
def topic(cluster: LocalCluster, new_name: Callable[[], str]) -> str:
    """Return a FIFO topic with one queue on each of two brokers."""
    name = new_name()
    with Admin(cluster.nameserver) as admin:
        admin.create_topic(name, queues=1, fifo=True)
    return name


def send(cluster: LocalCluster, topic: str, groups: int, count: int) -> None:
    """Send `count` messages of each message group, in turn, some by each way to send."""
    messages = [
        Message(topic, b"%d" % number, message_group=f"g{at}") for number in range(count) for at in range(groups)
    ]
    with Producer(cluster.nameserver) as producer:
        half = len(messages) // 2
        producer.send_many(messages[:half])
        for future in [producer.send_async(message) for message in messages[half:]]:
            future.result()


class Seen:
    """The messages of each message group as listeners consumed them, and who was called while another had some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, int] = defaultdict(int)
        self.bodies: dict[str, list[int]] = defaultdict(list)
        self.overlaps: list[str] = []

    def __call__(self, messages: list[ReceivedMessage]) -> ConsumeResult:
        group = messages[0].message_group or ""
        with self._lock:
            self._running[group] += 1
            if self._running[group] > 1:
                self.overlaps.append(group)
        failed = self._fails(group, messages)
        with self._lock:
            self._running[group] -= 1
            if not failed:
                self.bodies[group] += [int(message.body) for message in messages]
        return ConsumeResult.RETRY_LATER if failed else ConsumeResult.SUCCESS

    @staticmethod
    def _fails(group: str, messages: list[ReceivedMessage]) -> bool:
        """Fail always at one message of a group, and once at some others."""
        first = messages[0]
        return (group == "g7" and b"3" in [message.body for message in messages]) or (
            int(first.body) % 10 == 2 and group.endswith("1") and first.delivery_count == 1
        )


def test_what_lacks_a_message_group_or_has_one_too_many_is_rejected(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str]
) -> None:
    plain = new_name()
    with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
        admin.create_topic(plain, queues=1)
        with pytest.raises(InvalidArgument, match="is a FIFO topic: give each message a message group"):
            producer.send(Message(topic, b"x"))
        with pytest.raises(InvalidArgument, match="is not a FIFO topic"):
            producer.send(Message(plain, b"x", message_group="g"))
        with pytest.raises(TopicNotFound, match="--fifo"):
            producer.send(Message(new_name(), b"x", message_group="g"))
        with pytest.raises(InvalidArgument, match="1 to 64"):
            producer.send(Message(topic, b"x", message_group=""))
        with pytest.raises(InvalidArgument, match="leave out queue and selector"):
            producer.send(Message(topic, b"x", message_group="g"), selector=by_hash("k"))
        with pytest.raises(TopicExists):
            admin.create_topic(topic, queues=1)
        assert not admin.create_topic(topic, queues=1, if_not_exists=True)
        admin.update_topic(topic, read_queues=2)
        assert all(each.fifo for each in admin.describe_topic(topic).settings)
        assert {queue.max_offset for queue in admin.describe_topic(topic).queues} == {0}


def test_nothing_is_taken_ahead_of_a_message_that_may_fail(cluster: LocalCluster, topic: str) -> None:
    send(cluster, topic, groups=1, count=200)
    found: list[int] = []
    with WorkQueueConsumer(cluster.nameserver, group=topic) as consumer:
        consumer.subscribe(topic)
        while len(found) < 204:
            for message in consumer.receive(1, timeout=20):
                found.append(int(message.body))
                if found[-1] % 50 == 49 and message.delivery_count == 1:
                    consumer.release(message)
                else:
                    consumer.ack_async(message)
    assert found == sorted([*range(200), *range(49, 200, 50)])


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_poisoned_group_stops_alone_and_goes_on_after_its_dead_letter(
    cluster: LocalCluster, topic: str, batch_size: int
) -> None:
    send(cluster, topic, GROUPS, 8)
    seen = Seen()

    def are_done(*, with_poisoned: bool) -> bool:
        counts = {group: len(bodies) for group, bodies in [*seen.bodies.items()]}
        poisoned = counts.pop("g7", 0)
        return [*counts.values()] == [8] * (GROUPS - 1) and poisoned == (7 if with_poisoned else 3)

    with ExitStack() as ends:

        def join(max_deliveries: int) -> None:
            consumer = ends.enter_context(
                PushConsumer(
                    cluster.nameserver,
                    group=topic,
                    mode="work_queue",
                    batch_size=batch_size,
                    retry_delays_s=(0.05,),
                    max_deliveries=max_deliveries,
                )
            )
            consumer.subscribe(topic)
            consumer.start(seen)

        for _ in range(2):
            join(max_deliveries=1_000_000)
        wait_until(lambda: are_done(with_poisoned=False), 60)
    with ExitStack() as ends:
        join(max_deliveries=1)
        wait_until(lambda: are_done(with_poisoned=True), 60)
    assert seen.overlaps == []
    expected = {f"g{at}": [*range(8)] for at in range(GROUPS)}
    assert seen.bodies == expected | {"g7": [0, 1, 2, 4, 5, 6, 7]}


def groups_of(lines: str) -> dict[str, str]:
    """Return the message groups of bodies, out of lines that `peek --output json` writes."""
    return {message["body"]: message["message_group"] for message in map(json.loads, lines.splitlines())}


def test_commands_know_fifo_topics_and_message_groups(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str]
) -> None:
    name, run = new_name(), Minimq(cluster.nameserver)
    run("topic", "create", name, "--queues", "1", "--fifo")
    assert "FIFO" in run("topic", "describe", name)
    lines = b'{"account": "a"}\n{"account": "b"}\n{}\n'
    run("produce", name, "--message-group", "g", "--message-group-field", "account", stdin=lines)
    with WorkQueueConsumer(cluster.nameserver, group=name) as consumer:
        consumer.subscribe(name)
        found: list[WorkQueueMessage] = []
        while len(found) < 3:
            found += consumer.receive(8, timeout=20)
        assert {message.message_group for message in found} == {"g", "a", "b"}
        consumer.reject([message for message in found if message.message_group == "a"])
        consumer.ack([message for message in found if message.message_group != "a"])
    copied = new_name()
    run("topic", "create", copied, "--queues", "1", "--fifo")
    whole = run("peek", name, "--output", "json")
    run("produce", copied, "--message-group", "other", "--input", "jsonl", stdin=whole.encode())
    assert groups_of(run("peek", copied, "--output", "json")) == groups_of(whole)
    run("dlq", "resend", name, "--all")
    with WorkQueueConsumer(cluster.nameserver, group=name) as consumer:
        consumer.subscribe(name)
        [again] = consumer.receive(8, timeout=20)
        assert (again.message_group, again.body) == ("a", b'{"account": "a"}')


def test_a_listener_is_not_called_with_the_rest_of_what_went_to_others(cluster: LocalCluster, topic: str) -> None:
    send(cluster, topic, groups=1, count=6)
    calls: list[tuple[int, int]] = []

    def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
        calls.append((int(messages[0].body), messages[0].delivery_count))
        if len(calls) == 1:
            assert isinstance(messages[0], WorkQueueMessage)
            other.release(messages[0].handle)  # so all of them go to whoever is first
        return ConsumeResult.SUCCESS

    with (
        WorkQueueConsumer(cluster.nameserver, group=topic) as other,
        PushConsumer(cluster.nameserver, group=topic, mode="work_queue") as consumer,
    ):
        consumer.subscribe(topic)
        consumer.start(listen)
        wait_until(lambda: len(calls) >= 7, 20)
        assert calls == [(0, 1), (0, 2), *((at, 1) for at in range(1, 6))]


def test_nothing_passes_a_message_whose_dead_letter_cannot_be_stored(cluster: LocalCluster, topic: str) -> None:
    send(cluster, topic, groups=1, count=3)
    with (
        Admin(cluster.nameserver) as admin,
        WorkQueueConsumer(cluster.nameserver, group=topic, max_deliveries=2, prefetch_messages=0) as consumer,
    ):
        consumer.subscribe(topic)
        consumer.reject(consumer.receive(1, timeout=20))  # so there is a topic for dead letters
        admin.update_topic(f"%DLQ%{topic}", permission=Permission.READ)
        first, _ = consumer.receive(2, timeout=20)
        consumer.release(first)  # and with it the second one
        consumer.release(consumer.receive(2, timeout=20)[0])  # this was its last try
    with WorkQueueConsumer(cluster.nameserver, group=topic, max_deliveries=2, request_timeout_s=2.0) as consumer:
        consumer.subscribe(topic)

        def is_told() -> bool:
            try:
                assert consumer.receive(32, timeout=0.2) == []
            except Unavailable:
                return True
            return False

        wait_until(is_told, 60)
