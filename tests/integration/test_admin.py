"""Topics and brokers through `Admin`, on real servers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from minimq import aio
from minimq.admin.admin import Admin
from minimq.local.local_cluster import LocalCluster
from minimq.producer import Producer
from minimq_common.errors import (
    InvalidArgument,
    MinimqError,
    NotDrained,
    TopicExists,
    TopicNotFound,
    TransportError,
    Unavailable,
)
from minimq_common.model import Message, MessageQueue, Permission
from support.cases import for_each
from support.waiting import wait_until

NOBODY = "127.0.0.1:1"


@pytest.fixture
def pair() -> Iterator[LocalCluster]:
    """Two name servers and two brokers, for faults."""
    with LocalCluster(brokers=2, nameservers=2) as own:
        yield own


def shapes(admin: Admin, topic: str) -> dict[str, tuple[int, int, Permission]]:
    route = admin.route(topic)
    return {data.broker_name: (data.read_queues, data.write_queues, data.permission) for data in route.queues}


# ---- Create -------------------------------------------------------------------------------------


def test_a_topic_that_exists_is_rejected_or_left_alone(admin: Admin, topic: str) -> None:
    with pytest.raises(TopicExists, match="broker-a: 4 queues, read-write"):
        admin.create_topic(topic, queues=4)
    with pytest.raises(TopicExists, match="minimq topic update"):
        admin.create_topic(topic, queues=5)
    assert not admin.create_topic(topic, queues=5, if_not_exists=True)
    assert shapes(admin, topic)["broker-b"] == (4, 4, Permission.READ_WRITE)


@pytest.mark.fault
def test_a_creation_that_failed_half_way_is_completed_by_repeating_it(pair: LocalCluster) -> None:
    first, second = pair.brokers
    second.kill()
    with Admin(pair.nameserver) as admin:
        admin.create_topic("orders", queues=2)  # only on the broker that is there
        assert list(shapes(admin, "orders")) == ["broker-a"]
        second.start()
        admin.create_topic("orders", queues=2)
        assert list(shapes(admin, "orders")) == ["broker-a", "broker-b"]
        first.kill()
        with pytest.raises(TopicExists):
            admin.create_topic("orders", queues=2)


@pytest.mark.fault
def test_a_broker_that_hangs_is_named_and_nothing_is_changed(pair: LocalCluster) -> None:
    with Admin(pair.nameserver, timeout_s=5.0) as admin:
        pair.server("broker-b").pause()
        # A connection to it that is not made may be given up first.
        with pytest.raises(TransportError, match=r"on 1 of 2 brokers: broker-b \(127.*nothing was changed"):
            admin.create_topic("orders")
        assert admin.list_topics() == []
        pair.server("broker-b").resume()
        admin.create_topic("orders")
        assert list(shapes(admin, "orders")) == ["broker-a", "broker-b"]


def test_concurrent_creations_of_one_topic_leave_it_whole(admin: Admin, new_name: Callable[[], str]) -> None:
    name = new_name()

    def create(_: int) -> bool:
        try:
            admin.create_topic(name, queues=2)
        except TopicExists:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert any(pool.map(create, range(8)))
    assert list(shapes(admin, name)) == ["broker-a", "broker-b"]


@for_each(
    ("arguments", "text"),
    [
        ({"name": ""}, "topic name is empty"),
        ({"name": "a b"}, "illegal topic name"),
        ({"name": "a" * 128}, "the limit is 127"),
        ({"name": "x", "queues": 0}, "queues is 0"),
        ({"name": "x", "queues": 1025}, "1 to 1024"),
        ({"name": "x", "queues": -1}, "queues is -1"),
        ({"name": "x", "permission": Permission.NONE}, "readable or writable"),
    ],
)
def test_what_breaks_a_rule_is_rejected_with_the_rule(admin: Admin, arguments: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        admin.create_topic(**arguments)  # type: ignore[arg-type]  # that is the point
    assert "x" not in admin.list_topics()


# ---- Some brokers only --------------------------------------------------------------------------


def test_a_broker_that_is_not_there_is_rejected_with_the_list(admin: Admin, topic: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: admin.create_topic("x", brokers=["broker-a", "broker-z"]),
        lambda: admin.update_topic(topic, write_queues=1, brokers=["broker-z"]),
        lambda: admin.update_topic(topic, queues=1, brokers=["broker-z"]),
        lambda: admin.delete_topic(topic, brokers=["broker-z"], if_exists=True),
        lambda: admin.set_broker_permission("broker-z", Permission.READ),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="no broker 'broker-z': the name server knows broker-a, broker-b"):
            call()
    assert [shape[:2] for shape in shapes(admin, topic).values()] == [(4, 4), (4, 4)]
    assert "x" not in admin.list_topics()


# ---- Update, delete -----------------------------------------------------------------------------


def test_messages_do_not_go_out_of_sight_unless_forced(admin: Admin, topic: str, cluster: LocalCluster) -> None:
    with Producer(cluster.nameserver) as producer:
        for _ in range(3):
            producer.send(Message(topic, b"body"), queue=MessageQueue(topic, "broker-b", 3))
    admin.update_topic(topic, write_queues=2)
    reason = r"on 1 of 2 brokers: broker-b .*no group has read 3 messages of queue 3: .*--force"
    with pytest.raises(NotDrained, match=reason):
        admin.update_topic(topic, read_queues=2)
    # After a failure, nothing waits until the name server shows the other broker's change.
    wait_until(lambda: [shape[:2] for shape in shapes(admin, topic).values()] == [(2, 2), (4, 2)])
    admin.update_topic(topic, read_queues=2, force=True)
    assert [shape[:2] for shape in shapes(admin, topic).values()] == [(2, 2), (2, 2)]
    admin.update_topic(topic, read_queues=4)
    assert admin.describe_topic(topic).messages == 3


def test_an_update_of_nothing_or_of_no_topic_is_rejected(admin: Admin, topic: str) -> None:
    with pytest.raises(InvalidArgument, match="nothing to change"):
        admin.update_topic(topic)
    with pytest.raises(InvalidArgument, match="write_queues is 0"):
        admin.update_topic(topic, write_queues=0)
    with pytest.raises(TopicNotFound, match="is on no broker: create it"):
        admin.update_topic("no-such-topic", write_queues=2)


# ---- Looking ------------------------------------------------------------------------------------


def test_brokers_tell_about_themselves(admin: Admin, cluster: LocalCluster) -> None:
    rows = [(status.cluster, status.broker_name, status.broker_id, status.address) for status in admin.broker_status()]
    assert rows == [("default", broker.name, 0, broker.address) for broker in cluster.brokers]
    assert [broker.master for broker in admin.cluster()] == [broker.address for broker in cluster.brokers]
    for status in admin.broker_status():
        assert status.error is None
        assert status.report is not None
        assert status.report.log_end > status.report.log_start == 0


@pytest.mark.fault
def test_a_broker_that_hangs_is_in_the_status_with_the_reason(pair: LocalCluster) -> None:
    pair.server("broker-a").pause()
    with Admin(pair.nameserver, timeout_s=5.0) as admin:
        hanging, healthy = admin.broker_status()
    assert hanging.report is None
    assert re.search("has not answered in time|is not reached: it does not answer", hanging.error or "")
    assert healthy.report is not None


def test_offsets_of_several_queues_at_one_time(admin: Admin, topic: str, cluster: LocalCluster) -> None:
    queues = admin.route(topic).read_queues()
    with Producer(cluster.nameserver) as producer:
        for count, queue in enumerate(queues):
            producer.send_many([Message(topic, b"x")] * count, queue=queue)
    assert admin.offsets_at(iter(queues), "-1h") == dict.fromkeys(queues, 0)
    assert admin.offsets_at(queues, datetime.now(UTC) + timedelta(hours=1)) == {
        queue: count for count, queue in enumerate(queues)
    }
    assert admin.offsets_at([], "-1h") == {}
    absent = MessageQueue(topic, "broker-a", 99)
    with pytest.raises(MinimqError, match=f"queue {absent} .*no queue 99"):
        admin.offsets_at([*queues, absent], "-1h")


# ---- Nobody there -------------------------------------------------------------------------------


def test_without_a_name_server_the_error_says_how_to_start_one() -> None:
    with Admin(NOBODY, timeout_s=1) as admin:
        for call in (admin.list_topics, admin.cluster, admin.broker_status, lambda: admin.create_topic("x")):
            with pytest.raises(Unavailable, match=r"no name server listening at 127\.0\.0\.1:1: start one with"):
                call()


def test_without_a_broker_the_error_says_which_is_offline_or_how_to_start_one(pair: LocalCluster) -> None:
    for broker in pair.brokers:
        broker.stop()
    with Admin(pair.nameserver) as admin:
        for call in (lambda: admin.create_topic("x"), admin.list_groups, lambda: admin.describe_topic("x")):
            with pytest.raises(
                Unavailable, match=r"^broker-a is offline since .*, broker-b is offline since .*; start"
            ):
                call()
        for broker in pair.brokers:
            admin.delete_broker(broker.broker_name)
        with pytest.raises(Unavailable, match="minimq-broker --nameserver 127"):
            admin.create_topic("x")


@pytest.mark.fault
def test_a_broker_that_was_restarted_is_reached_at_once(pair: LocalCluster) -> None:
    with Admin(pair.nameserver) as admin:
        admin.create_topic("orders")
        for broker in pair.brokers:
            broker.kill()
        for broker in pair.brokers:
            broker.start()
            assert next(iter(shapes(admin, "orders"))) == "broker-a"
        assert len(admin.describe_topic("orders").queues) == 16


def test_a_resize_on_a_broker_without_the_topic_says_how_to_create_it_there(admin: Admin, topic: str) -> None:
    admin.create_topic(f"{topic}-half", queues=2, brokers=["broker-a"])
    remedy = f"is not on broker-b: create it there with `minimq topic create {topic}-half --broker broker-b`"
    with pytest.raises(TopicNotFound, match=remedy):
        admin.update_topic(f"{topic}-half", queues=5, brokers=["broker-b"])
    with pytest.raises(TopicNotFound, match="is not on broker-b: create it there with"):
        admin.update_topic(f"{topic}-half", read_queues=2, brokers=["broker-b"])
    assert admin.create_topic(f"{topic}-half", queues=5, brokers=["broker-b"])
    admin.delete_topic(f"{topic}-half")


# ---- `minimq.aio.Admin`: the same operations, without blocking the event loop -------------------


def test_a_topic_from_its_creation_to_its_end(cluster: LocalCluster, new_name: Callable[[], str]) -> None:
    async def use() -> None:
        async with aio.Admin(cluster.nameserver) as admin:
            first, second = new_name(), new_name()
            created: list[bool] = await asyncio.gather(
                *(admin.create_topic(name, queues=2) for name in (first, second))
            )
            assert created == [True, True]
            await admin.update_topic(first, queues=3, permission=Permission.READ)
            settings = (await admin.describe_topic(first)).settings
            assert {(each.read_queues, each.write_queues, each.permission) for each in settings} == {
                (3, 3, Permission.READ)
            }
            assert await admin.delayed_messages(first) == []
            await asyncio.gather(admin.delete_topic(first), admin.delete_topic(second))
            with pytest.raises(TopicNotFound):
                await admin.describe_topic(first)

    asyncio.run(use())
