"""One of two brokers is offline: no change leaves it out in silence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, Permission, Producer, PullConsumer
from minimq_common.errors import InvalidArgument, TopicUnavailable, Unavailable
from minimq_common.model import MessageQueue
from support.command import Minimq
from support.waiting import wait_until

OFFLINE = r"broker-b is offline since \d\d:\d\d:\d\d \(stopped\)"
TOPICS = ("orders", "kept", "resized", "changed", "gone", "elsewhere")


@pytest.fixture(scope="module")
def half() -> Iterator[LocalCluster]:
    """Two brokers with topics of one queue each, all read by group g, of which broker-b was stopped."""
    with LocalCluster(brokers=2) as cluster, Admin(cluster.nameserver) as admin:
        for topic in TOPICS:
            admin.create_topic(topic, queues=1)
        admin.create_topic("far", queues=1, brokers=["broker-b"])
        with Producer(cluster.nameserver) as producer:
            for queue in admin.route("orders").write_queues():
                producer.send(Message("orders", b"x"), queue=queue)
        for group in ("g", "h"):
            with PullConsumer(cluster.nameserver, group=group) as consumer:
                consumer.subscribe("orders")
                found = 0
                while found < 2:
                    found += len(consumer.poll(timeout=1.0))
        cluster.server("broker-b").stop()
        wait_until(lambda: [offline.broker_name for offline in admin.offline_brokers()] == ["broker-b"])
        yield cluster


@pytest.fixture
def minimq(half: LocalCluster) -> Minimq:
    return Minimq(half.nameserver)


@pytest.fixture
def admin(half: LocalCluster) -> Iterator[Admin]:
    with Admin(half.nameserver) as opened:
        yield opened


def test_a_reset_is_rejected(admin: Admin, minimq: Minimq) -> None:
    here, there = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)
    with pytest.raises(Unavailable, match=f"group g was not reset in topic orders: {OFFLINE}.*--queue.*--force"):
        admin.reset_offset("g", "orders")
    with pytest.raises(Unavailable, match=OFFLINE):
        admin.reset_offset("g", "orders", dry_run=True)
    with pytest.raises(Unavailable, match=OFFLINE):
        admin.reset_offset("g", "orders", queues=[there], force=True)
    assert admin.committed_offsets("g") == {here: 1}, "nothing was changed"
    assert "broker-b is offline since" in minimq("group", "reset-offset", "g", "orders", "--to", "earliest", status=1)

    assert admin.reset_offset("g", "orders", queues=[here]) == {here: 0}
    assert admin.reset_offset("g", "orders", "latest", force=True) == {here: 1}
    forced = minimq.json("group", "reset-offset", "g", "orders", "--to", "earliest", "--force")
    assert re.fullmatch(r"offline since \S+ \(stopped\): not reset", forced[-1]["note"])


def test_a_plan_names_no_broker_that_the_change_does_not_concern(admin: Admin) -> None:
    admin.create_topic("beside", queues=1, brokers=["broker-a"])
    admin.reset_offset("g", "beside")
    changes: dict[str, dict[str, Any]] = {
        "group reset-offset": {"group": "g", "topic": "beside", "to": "latest"},
        "topic update": {"name": "orders", "permission": Permission.READ, "brokers": ["broker-a"]},
    }
    for operation, arguments in changes.items():
        rows = admin.plan(operation, **arguments).rows
        assert [row for row in rows if "offline" in row.note] == [], operation


def test_the_deletion_of_a_topic_is_rejected(admin: Admin, minimq: Minimq) -> None:
    with pytest.raises(Unavailable, match=f"topic kept was not deleted: {OFFLINE}.*--force.*--broker"):
        admin.delete_topic("kept")
    assert "broker-b is offline since" in minimq("topic", "delete", "kept", status=1)
    with pytest.raises(Unavailable, match=OFFLINE):
        admin.delete_topic("far", if_exists=True)
    assert admin.route("kept").queues, "nothing was changed"

    assert [offline.broker_name for offline in admin.delete_topic("gone", force=True)] == ["broker-b"]
    assert admin.delete_topic("kept", brokers=["broker-a"]) == ()
    assert "brings the topic back when it starts" in minimq("topic", "delete", "elsewhere", "--force")


def test_the_deletion_of_a_group_is_rejected(admin: Admin, minimq: Minimq) -> None:
    with pytest.raises(Unavailable, match=f"group h was not deleted: {OFFLINE}.*--force"):
        admin.delete_group("h")
    assert "broker-b is offline since" in minimq("group", "delete", "h", status=1)
    assert "h" in admin.list_groups(), "nothing was changed"

    said = minimq("group", "delete", "h", "--force")
    assert re.search("group on broker-b .* offline since .* brings the group back", said)
    assert "h" not in admin.list_groups()


def test_what_was_not_changed_is_reported(admin: Admin, minimq: Minimq) -> None:
    [left_out] = admin.update_topic("changed", permission=Permission.READ)
    assert (left_out.broker_name, left_out.stopped) == ("broker-b", True)
    assert [each.broker_name for each in admin.update_topic("resized", queues=2)] == ["broker-b"]
    assert admin.update_topic("resized", queues=3, brokers=["broker-a"]) == ()
    for change in (("--permission", "read-write"), ("--queues", "2"), ("--queues", "2", "--permission", "read")):
        said = minimq.json("topic", "update", "changed", *change, status=1)
        assert said[-1]["what"] == "changed on broker-b"
        assert said[-1]["note"].endswith(": not changed")
    minimq("topic", "update", "changed", "--queues", "1", "--broker", "broker-a")
    with pytest.raises(TopicUnavailable, match=f"far cannot be reached: {OFFLINE}"):
        admin.update_topic("far", permission=Permission.READ)


def test_a_creation_says_where_the_topic_is_not(minimq: Minimq) -> None:
    said = minimq.json("topic", "create", "fresh", "--queues", "1", status=1)
    assert said[-1]["note"].endswith(": topic not created there")
    minimq("topic", "create", "near", "--queues", "1", "--broker", "broker-a")
    minimq("topic", "create", "orders", "--queues", "1", "--if-not-exists")  # broker-b has it


def test_a_broker_that_is_named_and_offline_is_said_to_be_offline(admin: Admin, minimq: Minimq) -> None:
    for call in (
        lambda: admin.set_broker_permission("broker-b", Permission.READ),
        lambda: admin.delete_topic("orders", brokers=["broker-b"]),
        lambda: admin.create_topic("named", brokers=["broker-b"]),
    ):
        with pytest.raises(Unavailable, match=f"^{OFFLINE}; start it again, .*cluster delete-broker broker-b`$"):
            call()
    assert minimq("cluster", "permission", "broker-b", "read", status=1).startswith("error: broker-b is offline since")
    with pytest.raises(InvalidArgument, match="there is no broker 'broker-c'"):
        admin.set_broker_permission("broker-c", Permission.READ)
