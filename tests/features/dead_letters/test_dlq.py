"""Dead letters are counted, shown, resent and deleted, by `Admin` and by `minimq dlq`."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from minimq import (
    Admin,
    ConsumeResult,
    LocalCluster,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    WorkQueueConsumer,
)
from minimq_cli.main import main
from minimq_common.errors import InvalidArgument
from minimq_common.names import dead_letter_topic
from support.cases import for_each
from support.command import Minimq
from support.reading import read_all
from support.waiting import wait_until

COUNT = 12


@pytest.fixture
def minimq(cluster: LocalCluster) -> Minimq:
    return Minimq(cluster.nameserver)


@pytest.fixture(scope="module")
def producer(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer(cluster.nameserver) as shared:
        yield shared


def bury(cluster: LocalCluster, producer: Producer, topic: str, group: str, count: int = COUNT) -> None:
    """Have a group give up so many messages, by turns because they are "odd" and "even"."""
    producer.send_many(
        Message(topic, b"%d" % number, "t", [f"k{number}", "k"], {"n": str(number), "RETRY_TOPIC": "mine"})
        for number in range(count)
    )
    found = 0
    with WorkQueueConsumer(cluster.nameserver, group=group) as consumer:
        consumer.subscribe(topic)
        while found < count:
            messages = consumer.receive(1000)
            for reason, rest in (("even", 0), ("odd", 1)):
                consumer.reject([message for message in messages if int(message.body) % 2 == rest], reason)
            found += len(messages)


def bodies(cluster: LocalCluster, topic: str) -> Counter[bytes]:
    return Counter(message.body for message in read_all(cluster.nameserver, topic))


def test_the_command_counts_shows_resends_and_drops(
    cluster: LocalCluster, minimq: Minimq, admin: Admin, producer: Producer, topic: str, new_name: Callable[[], str]
) -> None:
    bury(cluster, producer, topic, topic)
    listed = json.loads(minimq("dlq", "list", topic, "--output", "json"))
    assert [(row["reason"], row["count"]) for row in listed] == [("even", COUNT // 2), ("odd", COUNT // 2)]
    assert [row for row in json.loads(minimq("dlq", "list", "--output", "json")) if row["group"] == topic] == listed
    [line] = minimq("dlq", "describe", topic, "--key", "k7", "--output", "jsonl").splitlines()
    shown = json.loads(line)
    assert (shown["body"], shown["reason"], shown["topic"], shown["delivery_count"]) == ("7", "odd", topic, 1)
    text = minimq("dlq", "describe", topic, "--limit", "2", "--reason", "odd")
    assert text.count(f"{'reason':<20}odd\n") == 2

    def settled(*arguments: str) -> int:
        [row] = minimq.json("dlq", *arguments)
        then: int = row["then"]
        return then

    [planned] = minimq.json("dlq", "resend", topic, "--all", "--dry-run")
    assert planned["now"] == 12
    assert settled("resend", topic, "--id", shown["place"]) == 1
    other = new_name()
    assert "0 dead letters of group" in minimq("dlq", "resend", topic, "--all", "--to", other, status=1)
    admin.create_topic(other, queues=1)
    assert settled("resend", topic, "--reason", "odd", "--to", other) == 5
    assert bodies(cluster, other) == Counter(b"%d" % number for number in (1, 3, 5, 9, 11))
    assert settled("delete", topic, "--since", "-1h", "--yes") == 6
    assert settled("delete", topic, "--all") == 0
    assert minimq.with_stderr("dlq", "list", topic) == "no open dead letters\n"
    assert minimq.json("group", "describe", topic)["dead_letters"] == 12
    assert "all is not given, and no choice: choose some, by key or by time" in minimq("dlq", "resend", topic, status=2)
    assert "all excludes" in minimq("dlq", "delete", topic, "--all", "--key", "k", status=2)
    assert "minimq's own" in minimq("dlq", "resend", topic, "--all", "--to", "%DLQ%x", status=2)
    admin.delete_topic(other)


def test_a_work_queue_alone_gets_its_messages_again(
    cluster: LocalCluster, admin: Admin, producer: Producer, topic: str, new_name: Callable[[], str]
) -> None:
    other = new_name()
    bury(cluster, producer, topic, topic, 6)
    with pytest.raises(InvalidArgument, match="leave out the topic"):
        admin.resend_dead_letters(topic, only_group=True, to=topic)
    for options in (("--only-group", "--to", topic), ("--to", f"%RETRY%{topic}")):
        Minimq(cluster.nameserver)("dlq", "resend", topic, "--all", "--dry-run", *options, status=2)
    [row] = Minimq(cluster.nameserver).json("dlq", "resend", topic, "--reason", "odd", "--only-group")
    assert row["then"] == 3
    with (
        WorkQueueConsumer(cluster.nameserver, group=topic) as consumer,
        WorkQueueConsumer(cluster.nameserver, group=other, start="latest") as another,
    ):
        another.subscribe(topic)
        assert another.receive(10, timeout=0.1) == []
        consumer.subscribe(topic)

        def received(count: int) -> list[ReceivedMessage]:
            again: list[ReceivedMessage] = []
            while len(again) < count:
                found = consumer.receive(10, timeout=1)
                assert {(message.topic, message.delivery_count) for message in found} <= {(topic, 1)}
                again += found
                consumer.ack(found)
            return again

        assert sorted(message.body for message in received(3)) == [b"1", b"3", b"5"]
        assert admin.describe_group(topic).retrying == 0
        assert admin.resend_dead_letters(topic, only_group=True, reason="odd") == 0
        assert admin.resend_dead_letters(topic, only_group=True) == 3
        assert sorted(message.properties["n"] for message in received(3)) == ["0", "2", "4"]
        assert another.receive(10, timeout=0.1) == []
    assert set(bodies(cluster, topic).values()) == {1}
    assert admin.count_dead_letters(topic) == []


def test_a_group_that_divides_queues_now_gets_its_dead_letters_of_its_topics(
    cluster: LocalCluster, admin: Admin, producer: Producer, topic: str, new_name: Callable[[], str]
) -> None:
    group, before = new_name(), new_name()
    admin.create_topic(before, queues=1)
    bury(cluster, producer, before, group, 1)
    is_mended = threading.Event()
    delivered: list[tuple[bytes, int]] = []

    def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
        if not is_mended.is_set():
            return ConsumeResult.RETRY_LATER
        delivered.extend((message.body, message.delivery_count) for message in messages)
        return ConsumeResult.SUCCESS

    with PushConsumer(cluster.nameserver, group=group, max_deliveries=1, retry_delays_s=(0.05,)) as consumer:
        consumer.subscribe(topic)
        consumer.start(listen)
        producer.send(Message(topic, b"bad"))
        wait_until(lambda: sum(item.count for item in admin.count_dead_letters(group)) == 2, 40)
        is_mended.set()
        assert admin.resend_dead_letters(group, only_group=True) == 2
        wait_until(lambda: delivered, 40)
        wait_until(lambda: admin.describe_group(group).retrying == 1, 40, what="one that no member subscribes to")
    assert delivered == [(b"bad", 1)]
    with PushConsumer(cluster.nameserver, group=group) as consumer:
        consumer.subscribe(before)
        consumer.start(listen)
        wait_until(lambda: len(delivered) == 2, 40)
    admin.delete_topic(before)


def test_two_commands_at_the_same_time_lose_nothing(
    cluster: LocalCluster, admin: Admin, producer: Producer, topic: str
) -> None:
    bury(cluster, producer, topic, topic, 60)
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(admin.resend_dead_letters, topic) for _ in range(2)]:
            future.result()
    assert {count in (2, 3) for count in bodies(cluster, topic).values()} == {True}
    assert len(bodies(cluster, topic)) == 60
    assert admin.count_dead_letters(topic) == []


def test_what_died_after_its_topic_was_made_anew_is_open(
    cluster: LocalCluster, admin: Admin, producer: Producer, topic: str
) -> None:
    dead = dead_letter_topic(topic)
    bury(cluster, producer, topic, topic, 4)
    assert admin.resend_dead_letters(topic) == 4
    admin.delete_topic(dead)
    assert list(admin.dead_letters(topic)) == []
    admin.create_topic(dead, queues=1)
    producer.send_many([Message(dead, b"x")] * 2, queue=MessageQueue(dead, "broker-a", 0))
    producer.send_many([Message(dead, b"x")] * 2, queue=MessageQueue(dead, "broker-b", 0))
    assert [(letter.topic, letter.reason) for letter in admin.dead_letters(topic)] == [(None, "unknown")] * 4
    with pytest.raises(InvalidArgument, match=r"the topic of dead letter .* is unknown"):
        admin.resend_dead_letters(topic)
    with pytest.raises(InvalidArgument, match=r"give one \(--to\) in place of --only-group"):
        admin.resend_dead_letters(topic, only_group=True)
    assert admin.resend_dead_letters(topic, to=topic) == 4
    assert bodies(cluster, topic)[b"x"] == 4
    admin.delete_group(topic, dead_letters=True)
    assert dead not in admin.list_topics()


@pytest.mark.parametrize(
    "command", [("list",), ("describe",), ("resend", "--all"), ("delete", "--all")], ids=lambda c: c[0]
)
def test_a_mistyped_group_is_no_group_without_dead_letters(
    cluster: LocalCluster, command: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    name, *options = command
    with pytest.raises(SystemExit) as ended:
        main.main(["-s", cluster.nameserver, "dlq", name, "mailx", *options])
    shown = capfd.readouterr()
    assert (ended.value.code, shown.out) == (1, "")
    assert shown.err.startswith("error: there is no group mailx: `minimq group list`")


def test_wrong_choices_are_rejected(admin: Admin) -> None:
    turned = {"since": "-1h", "until": "-2h"}
    for wrong in ({"kay": "k"}, {"key": 1}, {"ids": [1]}, {"since": "soon"}, {"until": "2026-01-01"}, turned):
        with pytest.raises(InvalidArgument):
            list(admin.dead_letters("g", **wrong))
    assert list(admin.dead_letters("no-such-group")) == []


@for_each("kind", [PullConsumer, PushConsumer, partial(PushConsumer, mode="work_queue"), WorkQueueConsumer])
def test_a_group_cannot_consume_its_own_dead_letters(cluster: LocalCluster, kind: Callable[..., PullConsumer]) -> None:
    with kind(cluster.nameserver, group="g") as consumer:
        with pytest.raises(InvalidArgument, match="minimq dlq resend g, or another group"):
            consumer.subscribe(dead_letter_topic("g"))
        consumer.subscribe(dead_letter_topic("other"))
