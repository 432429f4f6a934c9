"""Consumer groups through `Admin`: real members on real servers, and what is said of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest

from minimq import Admin, ConsumeResult, LocalCluster, Message, MessageQueue, Producer, PullConsumer, PushConsumer
from minimq.administration.group_descriptions import GroupDescription
from minimq_common.errors import (
    DeadlineExceeded,
    GroupConflict,
    GroupNotFound,
    InvalidArgument,
    MiniMQError,
    OffsetOutOfRange,
    QueueNotFound,
    TopicNotFound,
    TransportError,
)
from minimq_proto.v1 import broker_pb2
from support.members import Log, Member, shared_evenly
from support.raw_member import RawMember
from support.waiting import wait_until

PATIENCE_S = 40.0


@pytest.fixture
def producer(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer(cluster.nameserver) as made:
        yield made


@pytest.fixture
def group(new_name: Callable[[], str]) -> str:
    return new_name()


@pytest.fixture
def pair() -> Iterator[LocalCluster]:
    """One name server and two brokers, for faults."""
    with LocalCluster(brokers=2) as own:
        yield own


def fill(producer: Producer, queues: list[MessageQueue], count: int) -> None:
    """Send as many messages to each of these queues."""
    for queue in queues:
        producer.send_many([Message(queue.topic, b"%d" % number) for number in range(count)], queue=queue)


def start(nameserver: str, group: str, topic: str) -> None:
    """Let a group begin at the start of a topic, and end again without having read anything."""
    with PullConsumer(nameserver, group=group, auto_commit=False) as consumer, Admin(nameserver) as admin:
        consumer.subscribe(topic)
        consumer.poll(0.1)
        brokers = {data.broker_name for data in admin.route(topic).queues}
        wait_until(lambda: {queue.broker_name for queue in consumer.assignment} == brokers, PATIENCE_S)
    wait_until(lambda: not members_of(nameserver, group), PATIENCE_S, what="the last member to be gone")


def members_of(nameserver: str, group: str) -> list[str]:
    with Admin(nameserver) as admin:
        return [member.client_id for member in admin.describe_group(group).members]


def committed(found: GroupDescription) -> dict[MessageQueue, int | None]:
    return {item.queue: item.committed_offset for item in found.queues}


# ---- Who reads what -----------------------------------------------------------------------------


def test_members_and_the_owner_of_each_queue(admin: Admin, cluster: LocalCluster, topic: str, group: str) -> None:
    log = Log()
    with Member(cluster.nameserver, group, topic, log) as one, Member(cluster.nameserver, group, topic, log) as two:
        wait_until(shared_evenly(one, two, queues=8), PATIENCE_S)
        found = admin.describe_group(group)
        assert (found.group, found.strategy, found.hold_s, found.deciding_broker) == (group, "averagely", 0, "broker-a")
        assert (found.brokers, found.unanswered) == (("broker-a", "broker-b"), {})
        assert found.is_agreed
        assert {member.client_id: [item.queue for item in member.queues] for member in found.members} == {
            member.consumer.client_id: member.queues for member in (one, two)
        }
        assert {member.seen_by for member in found.members} == {("broker-a", "broker-b")}
        owners = {item.queue: item.owner for item in found.queues}
        assert sorted(owners) == admin.route(topic).read_queues()
        assert {item.epoch > 0 for item in found.queues} == {True}
        former = {item.queue: item.epoch for item in found.queues}
    with Member(cluster.nameserver, group, topic, log) as three:
        wait_until(shared_evenly(three, queues=8), PATIENCE_S)
        found = admin.describe_group(group)
        assert {item.owner for item in found.queues} == {three.consumer.client_id}
        assert all(item.epoch > former[item.queue] for item in found.queues)
    wait_until(lambda: not members_of(cluster.nameserver, group), PATIENCE_S)
    found = admin.describe_group(group)
    assert {item.owner for item in found.queues} == {None}
    assert found.strategy is None


def test_a_member_with_a_full_hand_is_waited_for(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    fill(producer, admin.route(topic).read_queues(), 1)
    with PullConsumer(cluster.nameserver, group=group) as busy:
        busy.subscribe(topic)
        wait_until(lambda: busy.poll(0.1) and len(busy.assignment) == 8, PATIENCE_S, what="a message in hand")
        with Member(cluster.nameserver, group, topic, Log()) as hungry:
            waiting = wait_until(
                lambda: [item for item in admin.describe_group(group).queues if item.waiting], PATIENCE_S
            )
            assert {item.owner for item in waiting} == {busy.client_id}
            assert {item.waiting for item in waiting} == {(hungry.consumer.client_id,)}
            wait_until(lambda: busy.poll(0.01) is not None and len(hungry.queues) == 4, PATIENCE_S)
            assert not [item for item in admin.describe_group(group).queues if item.waiting]


def test_a_queue_that_is_held_and_a_member_that_one_broker_alone_sees(
    admin: Admin, cluster: LocalCluster, topic: str, group: str
) -> None:
    item = broker_pb2.QueueEpoch(topic=topic, queue_id=2)
    join = broker_pb2.JoinGroup(group=group, topics=[topic], allocation="sticky", hold_ms=60_000)
    with (
        RawMember(cluster.brokers[0].address, "holder") as holder,
        RawMember(cluster.brokers[1].address, "other") as other,
    ):
        other.say(join=join)
        other.hear("members")
        holder.say(join=join)
        holder.say(acquire=broker_pb2.AcquireQueues(group=group, queues=[item]))
        holder.hear("granted")
        found = admin.describe_group(group)
        assert (found.strategy, found.hold_s, found.is_agreed) == ("sticky", 60, False)
        assert [(member.client_id, member.seen_by) for member in found.members] == [
            ("holder", ("broker-a",)),
            ("other", ("broker-b",)),
        ]

        holder.say(release=broker_pb2.ReleaseQueues(group=group, queues=[item]))
        [held] = wait_until(lambda: [item for item in admin.describe_group(group).queues if item.held_for_s])
        assert (held.queue, held.owner, held.epoch) == (MessageQueue(topic, "broker-a", 2), None, 0)
        assert 0 < held.held_for_s <= 60
        for member in (holder, other):
            member.say(leave=broker_pb2.LeaveGroup(group=group))
        wait_until(lambda: not admin.describe_group(group).members)
        # It may come back, and would go on where it was.
        with pytest.raises(GroupConflict, match="2 for holder"):
            admin.reset_offsets(group, topic, "latest")
        assert admin.reset_offsets(group, topic, "latest", force=True)


# ---- Lag ----------------------------------------------------------------------------------------


def test_lag_is_right_before_while_and_after_it_is_read(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    queues = admin.route(topic).read_queues()
    start(cluster.nameserver, group, topic)
    found = admin.describe_group(group)
    assert (found.lag, found.lag_s) == (0, 0)
    assert committed(found) == dict.fromkeys(queues, 0)

    before = datetime.now(UTC)
    fill(producer, queues[:4], 10)
    between = datetime.now(UTC)
    fill(producer, queues[4:6], 5)
    found = admin.describe_group(group)
    after = datetime.now(UTC)
    assert {item.queue: item.lag for item in found.queues} == dict(
        zip(queues, [10] * 4 + [5] * 2 + [0] * 2, strict=True)
    )
    assert found.lag == 50
    blink = timedelta(milliseconds=2)  # store times are whole milliseconds
    for item in found.queues[:4]:
        assert item.oldest_unread_at is not None
        assert before - blink <= item.oldest_unread_at <= between + blink
        assert item.lag_s <= (after - before + blink).total_seconds()
    assert found.lag_s == max(item.lag_s for item in found.queues) > 0
    assert {(item.lag_s, item.oldest_unread_at) for item in found.queues[6:]} == {(0, None)}

    with PullConsumer(cluster.nameserver, group=group, auto_commit=False) as consumer:
        consumer.subscribe(topic)
        left, read = found.lag, 0
        while left:
            messages = consumer.poll(1.0, max_messages=3)
            consumer.commit()
            read += len(messages)
            found = admin.describe_group(group)
            assert found.lag == 50 - read == sum(member.lag for member in found.members) + unowned_lag(found)
            left = found.lag
    assert (found.lag, found.lag_s) == (0, 0)
    assert committed(found) == dict(zip(queues, [10] * 4 + [5] * 2 + [0] * 2, strict=True))


def unowned_lag(found: GroupDescription) -> int:
    return sum(item.lag for item in found.queues if item.owner is None)


def test_the_lag_of_a_push_consumer_falls_to_nothing(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    fill(producer, admin.route(topic).read_queues(), 25)
    with PushConsumer(cluster.nameserver, group=group, commit_interval_s=0.1) as consumer:
        consumer.subscribe(topic)
        consumer.start(lambda _message: ConsumeResult.SUCCESS)
        wait_until(lambda: group in admin.list_groups(), PATIENCE_S)
        wait_until(
            lambda: sum(item.committed_offset or 0 for item in admin.describe_group(group).queues) == 200, PATIENCE_S
        )
        found = admin.describe_group(group)
        assert (found.lag, found.lag_s, found.retrying) == (0, 0, 0)
        assert [member.client_id for member in found.members] == [consumer.client_id]


# ---- Which groups -------------------------------------------------------------------------------


def test_groups_are_listed_and_described_together(
    admin: Admin, cluster: LocalCluster, topic: str, new_name: Callable[[], str]
) -> None:
    names = sorted((new_name(), new_name()))
    for name in names:
        start(cluster.nameserver, name, topic)
    listed = admin.list_groups()
    assert listed == sorted(set(listed))
    assert set(names) <= set(listed)
    described = {item.group: item for item in admin.describe_groups()}
    assert set(names) <= described.keys()
    assert {len(described[name].queues) for name in names} == {8}


def test_a_group_that_nobody_knows(admin: Admin, topic: str) -> None:
    with pytest.raises(GroupNotFound, match="there is no group nobody: `minimq group list`"):
        admin.describe_group("nobody")
    with pytest.raises(InvalidArgument, match="illegal group name"):
        admin.describe_group("a b")
    assert "nobody" not in admin.list_groups()


# ---- A broker is away ---------------------------------------------------------------------------


def test_a_broker_that_hangs_is_named_and_the_others_are_described(
    pair: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Admin(pair.nameserver, timeout_s=1.0) as admin:
        admin.create_topic("orders", 2)
        start(pair.nameserver, "billing", "orders")
        pair.server("broker-b").pause()
        found = admin.describe_group("billing")
        assert {item.queue.broker_name for item in found.queues} == {"broker-a"}
        assert found.brokers == ("broker-a",)
        assert list(found.unanswered) == ["broker-b"]
        assert "deadline" in found.unanswered["broker-b"].lower()
        with caplog.at_level(logging.WARNING, "minimq"):
            assert admin.list_groups() == ["billing"]
        assert "broker=broker-b" in caplog.text
        assert [item.group for item in admin.describe_groups()] == ["billing"]
        with pytest.raises(DeadlineExceeded, match="group nobody is not known on 1 of 2 brokers: broker-b"):
            admin.describe_group("nobody")
        with pytest.raises(DeadlineExceeded, match="nothing was changed"):
            admin.reset_offsets("billing", "orders", "latest")
        assert admin.reset_offsets("billing", "orders", 0, queues=[MessageQueue("orders", "broker-a", 1)])
        pair.server("broker-a").pause()
        for call in (admin.list_groups, admin.describe_groups, lambda: admin.describe_group("billing")):
            with pytest.raises(TransportError):
                call()


# ---- Resetting ----------------------------------------------------------------------------------


def test_a_reset_to_the_beginning_the_end_an_offset_and_a_time(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    queues = admin.route(topic).read_queues()
    start(cluster.nameserver, group, topic)
    fill(producer, queues, 3)
    middle = wait_until(lambda: after_all_of(admin, topic))
    assert middle is not None
    fill(producer, queues, 4)

    assert admin.reset_offsets(group, topic, "latest") == dict.fromkeys(queues, 7)
    assert admin.describe_group(group).lag == 0
    assert admin.reset_offsets(group, topic, middle) == dict.fromkeys(queues, 3)
    assert admin.describe_group(group).lag == 32
    assert admin.reset_offsets(group, topic, 5, queues=queues[2:4]) == dict.fromkeys(queues[2:4], 5)
    assert committed(admin.describe_group(group)) == {**dict.fromkeys(queues, 3), **dict.fromkeys(queues[2:4], 5)}
    assert admin.reset_offsets(group, topic) == dict.fromkeys(queues, 0)
    assert admin.committed_offsets(group, topic) == dict.fromkeys(queues, 0)

    log = Log()
    admin.reset_offsets(group, topic, 6)
    with Member(cluster.nameserver, group, topic, log):
        wait_until(lambda: len(log) >= 8, PATIENCE_S)
    assert log.missing({(queue, 6) for queue in queues}) == set()
    assert len(log) == 8


def after_all_of(admin: Admin, topic: str) -> datetime | None:
    """Return a moment that is later than all that is stored in a topic."""
    latest = max(item.last_stored_at for item in admin.describe_topic(topic).queues if item.last_stored_at)
    now = datetime.now(UTC)
    return now if now > latest + timedelta(milliseconds=5) else None


def test_a_group_may_be_told_where_to_begin(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    queues = admin.route(topic).read_queues()
    fill(producer, queues, 3)
    assert admin.reset_offsets(group, topic, 2) == dict.fromkeys(queues, 2)
    assert group in admin.list_groups()
    found = admin.describe_group(group)
    assert (found.members, found.lag, committed(found)) == ((), 8, dict.fromkeys(queues, 2))
    log = Log()
    with Member(cluster.nameserver, group, topic, log, start="earliest"):
        wait_until(lambda: len(log) >= 8, PATIENCE_S)
    assert log.missing({(queue, 2) for queue in queues}) == set()
    assert len(log) == 8


def test_a_reset_under_members_is_refused_with_their_names_unless_it_is_forced(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    queues = admin.route(topic).read_queues()
    fill(producer, queues, 2)
    log = Log()
    with Member(cluster.nameserver, group, topic, log, auto_commit=False) as one:
        wait_until(lambda: len(log) == 16, PATIENCE_S)
        with pytest.raises(GroupConflict, match=one.consumer.client_id):
            admin.reset_offsets(group, topic, "latest")
        assert admin.committed_offsets(group, topic) == dict.fromkeys(queues, 0)
        assert admin.reset_offsets(group, topic, "latest", force=True) == dict.fromkeys(queues, 2)
        assert admin.committed_offsets(group, topic) == dict.fromkeys(queues, 2)
    wait_until(lambda: not members_of(cluster.nameserver, group), PATIENCE_S)
    assert admin.reset_offsets(group, topic, 1) == dict.fromkeys(queues, 1)


def test_a_reset_that_cannot_be_is_refused_before_anything_is_changed(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    queues = admin.route(topic).read_queues()
    start(cluster.nameserver, group, topic)
    fill(producer, queues, 1)
    wrong: list[tuple[type[MiniMQError], str, Callable[[], object]]] = [
        (TopicNotFound, "no-such-topic", lambda: admin.reset_offsets(group, "no-such-topic")),
        (InvalidArgument, "illegal group", lambda: admin.reset_offsets("a b", topic)),
        (InvalidArgument, "time zone", lambda: admin.reset_offsets(group, topic, datetime(2026, 1, 31))),  # noqa: DTZ001
        (InvalidArgument, "'soon'", lambda: admin.reset_offsets(group, topic, "soon")),  # type: ignore[arg-type]
        (InvalidArgument, "True", lambda: admin.reset_offsets(group, topic, True)),
        (InvalidArgument, "-1", lambda: admin.reset_offsets(group, topic, -1)),
        (OffsetOutOfRange, "offset 2 is not in queue .*: it has 0 to 1", lambda: admin.reset_offsets(group, topic, 2)),
        (InvalidArgument, "queues is empty", lambda: admin.reset_offsets(group, topic, queues=[])),
        (
            InvalidArgument,
            "not one of topic",
            lambda: admin.reset_offsets(group, topic, queues=[MessageQueue("other", "broker-a", 0)]),
        ),
        (
            QueueNotFound,
            "broker-z",
            lambda: admin.reset_offsets(group, topic, queues=[MessageQueue(topic, "broker-z", 0)]),
        ),
        (
            QueueNotFound,
            "no queue .*/99: broker-a has 4",
            lambda: admin.reset_offsets(group, topic, "latest", queues=[MessageQueue(topic, "broker-a", 99)]),
        ),
    ]
    for error, text, call in wrong:
        with pytest.raises(error, match=text):
            call()
    assert admin.committed_offsets(group, topic) == dict.fromkeys(queues, 0)


@pytest.mark.parametrize("to", ["earliest", 50])
def test_a_forced_reset_backwards_is_read_again_by_the_live_member(
    cluster: LocalCluster, admin: Admin, topic: str, to: Literal["earliest"] | int
) -> None:
    with Producer(cluster.nameserver) as producer:
        queue = MessageQueue(topic, "broker-a", 0)
        producer.send_many((Message(topic, b"%d" % number) for number in range(100)), queue=queue)
    with PullConsumer(cluster.nameserver, group=topic) as consumer:
        consumer.subscribe(topic)
        read: list[int] = []

        def polled(count: int) -> bool:
            read.extend(message.queue_offset for message in consumer.poll(0.2))
            return len(read) >= count

        wait_until(lambda: polled(100), PATIENCE_S)
        consumer.commit()
        first = 0 if to == "earliest" else 50
        assert admin.reset_offsets(topic, topic, to, queues=[queue], force=True)[queue] == first
        read.clear()
        wait_until(lambda: polled(100 - first), PATIENCE_S)
        assert read == list(range(first, 100))
        consumer.commit()
        assert admin.committed_offsets(topic, topic)[queue] == 100
