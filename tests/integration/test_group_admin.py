"""Consumer groups through `Admin`: real members on real servers, and what is said of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from minimq import Admin, LocalCluster, MessageQueue, Producer, PullConsumer
from minimq.admin.group_descriptions import GroupDescription
from minimq_common.errors import GroupConflict, TransportError
from minimq_proto.v1 import broker_pb2
from support.groups import TIMEOUT_S, committed, fill, members_of, start
from support.members import Log, Member, shared_evenly
from support.raw_member import RawMember
from support.waiting import wait_until


@pytest.fixture
def pair() -> Iterator[LocalCluster]:
    """One name server and two brokers, for faults."""
    with LocalCluster(brokers=2) as own:
        yield own


# ---- Who reads what -----------------------------------------------------------------------------


def test_members_and_the_owner_of_each_queue(admin: Admin, cluster: LocalCluster, topic: str, group: str) -> None:
    log = Log()
    with Member(cluster.nameserver, group, topic, log) as one, Member(cluster.nameserver, group, topic, log) as two:
        wait_until(shared_evenly(one, two, queues=8), TIMEOUT_S)
        found = admin.describe_group(group)
        assert (found.group, found.strategy, found.handover_timeout_s, found.deciding_broker) == (
            group,
            "averagely",
            0,
            "broker-a",
        )
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
        wait_until(shared_evenly(three, queues=8), TIMEOUT_S)
        found = admin.describe_group(group)
        assert {item.owner for item in found.queues} == {three.consumer.client_id}
        assert all(item.epoch > former[item.queue] for item in found.queues)
    wait_until(lambda: not members_of(cluster.nameserver, group), TIMEOUT_S)
    found = admin.describe_group(group)
    assert {item.owner for item in found.queues} == {None}
    assert found.strategy is None


def test_a_member_with_a_full_hand_is_waited_for(
    admin: Admin, cluster: LocalCluster, producer: Producer, topic: str, group: str
) -> None:
    fill(producer, admin.route(topic).read_queues(), 1)
    with PullConsumer(cluster.nameserver, group=group) as busy:
        busy.subscribe(topic)
        wait_until(lambda: busy.poll(0.1) and len(busy.assignment) == 8, TIMEOUT_S, what="a message in flight")
        with Member(cluster.nameserver, group, topic, Log()) as hungry:
            waiting = wait_until(
                lambda: [item for item in admin.describe_group(group).queues if item.waiting], TIMEOUT_S
            )
            assert {item.owner for item in waiting} == {busy.client_id}
            assert {item.waiting for item in waiting} == {(hungry.consumer.client_id,)}
            wait_until(lambda: busy.poll(0.01) is not None and len(hungry.queues) == 4, TIMEOUT_S)
            assert not [item for item in admin.describe_group(group).queues if item.waiting]


def test_a_queue_that_is_held_and_a_member_that_one_broker_alone_sees(
    admin: Admin, cluster: LocalCluster, topic: str, group: str
) -> None:
    item = broker_pb2.QueueEpoch(topic=topic, queue_id=2)
    join = broker_pb2.JoinGroup(group=group, topics=[topic], allocation="sticky", handover_timeout_ms=60_000)
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
        assert (found.strategy, found.handover_timeout_s, found.is_agreed) == ("sticky", 60, False)
        assert [(member.client_id, member.seen_by) for member in found.members] == [
            ("holder", ("broker-a",)),
            ("other", ("broker-b",)),
        ]

        holder.say(release=broker_pb2.ReleaseQueues(group=group, queues=[item]))
        [held] = wait_until(lambda: [item for item in admin.describe_group(group).queues if item.held_for_s])
        assert (held.queue, held.owner, held.holder, held.epoch) == (
            MessageQueue(topic, "broker-a", 2),
            None,
            "holder",
            0,
        )
        assert 0 < held.held_for_s <= 60
        for member in (holder, other):
            member.say(leave=broker_pb2.LeaveGroup(group=group))
        wait_until(lambda: not admin.describe_group(group).members)
        # It may come back, and would go on where it was.
        with pytest.raises(GroupConflict, match=f"{topic}/broker-a/2 for holder; wait"):
            admin.reset_offset(group, topic, "latest")
        assert admin.reset_offset(group, topic, "latest", force=True)


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


# ---- Which groups -------------------------------------------------------------------------------


# ---- A broker is offline ---------------------------------------------------------------------------


@pytest.mark.fault
def test_a_broker_that_hangs_is_named_and_the_others_are_described(
    pair: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Admin(pair.nameserver) as patient:
        patient.create_topic("orders", 2)
    with Admin(pair.nameserver, timeout_s=3.0) as admin:
        start(pair.nameserver, "billing", "orders")
        pair.server("broker-b").pause()
        found = admin.describe_group("billing")
        assert {item.queue.broker_name for item in found.queues} == {"broker-a"}
        assert found.brokers == ("broker-a",)
        assert list(found.unanswered) == ["broker-b"]
        assert re.search("has not answered in time|is not reached", found.unanswered["broker-b"])
        with caplog.at_level(logging.WARNING, "minimq"):
            assert admin.list_groups() == ["billing"]
        assert "broker=broker-b" in caplog.text
        [listed] = admin.describe_groups()
        assert (listed.group, list(listed.unanswered)) == ("billing", ["broker-b"])
        queues = [MessageQueue("orders", "broker-a", 1)]
        plan = admin.plan("group reset-offset", group="billing", topic="orders", to=0, queues=queues)
        assert [(row.what, row.note) for row in plan.rows if "broker-b" in row.what] == [
            ("members on broker-b", "does not answer: they are not counted")
        ]
        # By now its connection may have been closed, as it answers nothing.
        with pytest.raises(TransportError, match="group nobody is not known on 1 of 2 brokers: broker-b"):
            admin.describe_group("nobody")
        with pytest.raises(TransportError, match="nothing was changed"):
            admin.reset_offset("billing", "orders", "latest")
        assert admin.reset_offset("billing", "orders", 0, queues=queues)
        pair.server("broker-a").pause()
        for call in (admin.list_groups, admin.describe_groups, lambda: admin.describe_group("billing")):
            with pytest.raises(TransportError):
                call()
