"""One of two brokers is offline: no change leaves it out in silence."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq_common.errors import Unavailable
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
