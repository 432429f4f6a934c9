"""Consumer groups that are deleted, by `Admin`, by the command, and by brokers when nobody uses them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from minimq import Admin, ConsumeResult, LocalCluster, Message, MessageQueue, Producer, PullConsumer, PushConsumer
from minimq_common.errors import GroupConflict, GroupNotFound, InvalidArgument, NotDrained
from minimq_common.names import dead_letter_topic, retry_topic
from support.command import Minimq
from support.groups import TIMEOUT_S, members_of
from support.reading import check_brokers
from support.waiting import wait_until

QUICK = {"group_expiry_s": 3.0, "session_grace_s": 0.3}


@pytest.fixture
def single(tmp_path: Path) -> Iterator[LocalCluster]:
    """One broker, for faults, on which groups expire within a moment."""
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=QUICK) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("t", queues=2)
        yield own
    check_brokers(own)


def commit(nameserver: str, group: str, *queues: MessageQueue, offset: int = 0) -> None:
    with PullConsumer(nameserver, group=group, auto_commit=False) as consumer:
        consumer.assign(queues)
        consumer.commit(dict.fromkeys(queues, offset))


def make_dead_letter(cluster: LocalCluster, topic: str, group: str) -> None:
    """Let a group give one message up, after which nobody is in it any more."""
    with PushConsumer(
        cluster.nameserver, group=group, max_deliveries=1, commit_interval_s=0.1, start="earliest"
    ) as consumer:
        consumer.subscribe(topic)
        consumer.start(lambda _: ConsumeResult.RETRY_LATER)
        with Producer(cluster.nameserver) as producer:
            producer.send(Message(topic, b"bad"))
        with Admin(cluster.nameserver) as admin:
            wait_until(lambda: group in admin.list_groups(), TIMEOUT_S)
            wait_until(lambda: admin.describe_group(group).dead_letters == 1, TIMEOUT_S, what="a dead letter")
            wait_until(lambda: admin.describe_group(group).lag == 0, TIMEOUT_S, what="its commit")
    wait_until(lambda: not members_of(cluster.nameserver, group), TIMEOUT_S)


def test_a_group_is_deleted_on_every_broker_and_forgotten(
    admin: Admin, cluster: LocalCluster, topic: str, group: str
) -> None:
    commit(cluster.nameserver, group, *admin.route(topic).read_queues())
    assert len(admin.committed_offsets(group)) == 8
    admin.delete_group(group)
    assert group not in admin.list_groups()
    assert admin.committed_offsets(group) == {}
    with pytest.raises(GroupNotFound, match=f"there is no group {group}"):
        admin.delete_group(group)
    with PullConsumer(cluster.nameserver, group=group, start="earliest") as consumer:  # it is a new one
        consumer.subscribe(topic)
        with Producer(cluster.nameserver) as producer:
            producer.send(Message(topic, b"x"))
        assert [message.body for message in wait_until(lambda: consumer.poll(0.1), TIMEOUT_S)] == [b"x"]


def test_a_group_with_members_is_deleted_only_by_force_and_they_begin_anew(
    admin: Admin, cluster: LocalCluster, topic: str, group: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    with (
        Producer(cluster.nameserver) as producer,
        PullConsumer(cluster.nameserver, group=group, start="earliest") as consumer,
    ):
        producer.send(Message(topic, b"once"), queue=queue)
        consumer.subscribe(topic)
        assert [message.body for message in wait_until(lambda: consumer.poll(0.1), TIMEOUT_S)] == [b"once"]
        consumer.commit()
        with pytest.raises(GroupConflict, match=r"or delete it with force \(--force\): they then start over"):
            admin.delete_group(group)
        assert admin.committed_offsets(group, topic)[queue] == 1
        admin.delete_group(group, force=True)
        # It is a new group, so it sees again what it has committed.
        assert [message.body for message in wait_until(lambda: consumer.poll(0.1), TIMEOUT_S)] == [b"once"]
        consumer.commit()
        assert admin.committed_offsets(group, topic)[queue] == 1


def test_a_deleted_group_does_not_hold_up_a_resize_and_leaves_its_dead_letters(
    admin: Admin, cluster: LocalCluster, topic: str, group: str
) -> None:
    minimq = Minimq(cluster.nameserver)
    make_dead_letter(cluster, topic, group)
    with Producer(cluster.nameserver) as producer:
        for broker in ("broker-a", "broker-b"):
            producer.send(Message(topic, b"unread"), queue=MessageQueue(topic, broker, 3))
    commit(cluster.nameserver, f"{group}-other", *admin.route(topic).read_queues(), offset=0)
    last = [MessageQueue(topic, broker, 3) for broker in ("broker-a", "broker-b")]
    with PullConsumer(cluster.nameserver, group=f"{group}-other") as consumer:
        consumer.assign(last)
        ends = {item.queue: item.max_offset for item in admin.describe_topic(topic).queues}
        consumer.commit({queue: ends[queue] for queue in last})
    with pytest.raises(NotDrained, match=f"group {group} has not read"):
        admin.update_topic(topic, queues=3)

    assert f"stay in topic {dead_letter_topic(group)}" in minimq("group", "delete", group)
    admin.update_topic(topic, queues=3)
    topics = admin.list_topics()
    assert retry_topic(group) not in topics
    assert dead_letter_topic(group) in topics
    assert f"topic {dead_letter_topic(group)}" in minimq("group", "delete", group, "--dead-letters")
    assert dead_letter_topic(group) not in admin.list_topics()
    assert "there is no group" in minimq("group", "delete", group, status=1)


def test_what_waits_for_another_try_stays_with_members_and_goes_with_the_group(
    admin: Admin, cluster: LocalCluster, topic: str, group: str
) -> None:
    with PushConsumer(cluster.nameserver, group=group, retry_delays_s=(3600.0,), start="earliest") as consumer:
        consumer.subscribe(topic)
        consumer.start(lambda _: ConsumeResult.RETRY_LATER)
        with Producer(cluster.nameserver) as producer:
            producer.send(Message(topic, b"later"))
        wait_until(lambda: retry_topic(group) in admin.list_topics(), TIMEOUT_S, what="its retry topic")
        wait_until(lambda: admin.describe_topic(retry_topic(group)).messages, TIMEOUT_S, what="a message in it")
        admin.delete_group(group, force=True)
        assert admin.describe_topic(retry_topic(group)).messages
    wait_until(lambda: not members_of(cluster.nameserver, group), TIMEOUT_S)
    admin.delete_group(group)
    assert retry_topic(group) not in admin.list_topics()


def test_an_idle_group_says_when_it_expires(admin: Admin, cluster: LocalCluster, topic: str, group: str) -> None:
    minimq = Minimq(cluster.nameserver)
    commit(cluster.nameserver, group, *admin.route(topic).read_queues())
    expires_at = admin.describe_group(group).expires_at
    assert expires_at is not None
    assert timedelta(days=6.9) < expires_at - datetime.now(UTC) < timedelta(days=7.1)
    assert minimq.json("group", "describe", group)["expires_at"] == expires_at.isoformat()
    assert " 6d 23h" in minimq("group", "list")


@pytest.mark.fault
def test_an_idle_group_goes_by_itself(single: LocalCluster) -> None:
    queue = MessageQueue("t", "broker-a", 0)
    with Admin(single.nameserver) as admin:
        with PullConsumer(single.nameserver, group="live") as member:
            member.subscribe("t")
            member.poll(0.05)
            wait_until(lambda: len(member.assignment) == 2, TIMEOUT_S)
            commit(single.nameserver, "idle", queue)
            assert admin.describe_group("live").expires_at is None
            wait_until(lambda: admin.list_groups() == ["live"], TIMEOUT_S, what="the idle group to be gone")
        [broker] = single.brokers
        commit(single.nameserver, "idle", queue)
        broker.kill()
        broker.start()
        # The member of the other one has left before, so nobody uses either of them.
        wait_until(lambda: admin.list_groups() == [], TIMEOUT_S, what="both groups to be gone")
        broker.kill()
        broker.start()
        assert wait_until(lambda: admin.broker_status()[0].report, TIMEOUT_S)
        assert admin.list_groups() == []


def test_a_commit_that_is_asked_for_is_recorded_though_this_consumer_has_recorded_it_before(
    admin: Admin, cluster: LocalCluster, topic: str, group: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    with (
        Producer(cluster.nameserver) as producer,
        PullConsumer(cluster.nameserver, group=group, start="earliest", auto_commit=False) as consumer,
    ):
        producer.send(Message(topic, b"x"), queue=queue)
        consumer.assign([queue])
        wait_until(lambda: consumer.poll(0.1), TIMEOUT_S)
        for offsets in (None, {queue: 1}):
            consumer.commit()
            assert admin.committed_offsets(group) == {queue: 1}
            admin.delete_group(group)
            consumer.commit(offsets)
            assert admin.committed_offsets(group) == {queue: 1}
        admin.reset_offset(group, topic, "earliest")
        assert admin.committed_offsets(group)[queue] == 0
        consumer.commit()
        assert admin.committed_offsets(group)[queue] == 1


@pytest.mark.replaced_by("contract")
@pytest.mark.fault
def test_a_deletion_that_was_acknowledged_outlives_a_kill(single: LocalCluster) -> None:
    [broker] = single.brokers
    with Admin(single.nameserver) as admin:
        commit(single.nameserver, "g", MessageQueue("t", "broker-a", 0))
        admin.delete_group("g")
        broker.kill()
        broker.start()
        wait_until(lambda: admin.broker_status()[0].report, TIMEOUT_S)
        assert admin.list_groups() == []


def test_a_pattern_deletes_all_groups_that_match(admin: Admin, cluster: LocalCluster, topic: str, group: str) -> None:
    minimq, queues = Minimq(cluster.nameserver), admin.route(topic).read_queues()
    for name in (f"{group}-a", f"{group}-b", group):
        commit(cluster.nameserver, name, *queues)
    planned = minimq.json("group", "delete", f"{group}-*", "--dry-run")
    assert [row["what"] for row in planned] == [f"group {group}-a", f"group {group}-b"]
    minimq("group", "delete", f"{group}-*")
    assert [name for name in admin.list_groups() if name.startswith(group)] == [group]
    assert f"no group matches {group}-*" in minimq("group", "delete", f"{group}-*", status=1)
    with pytest.raises(InvalidArgument):
        admin.delete_group("*/%")
    admin.delete_group(group)
