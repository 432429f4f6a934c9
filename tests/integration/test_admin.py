"""Topics and brokers through `Admin`, on real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from minimq.administration.admin import Admin
from minimq.local.local_cluster import LocalCluster
from minimq.routes.nameserver_link import NameServerLink, NameServerLinks
from minimq.sending.producer import Producer
from minimq_common.errors import (
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    MiniMQError,
    NotDrained,
    SystemBusy,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from minimq_common.model import Message, MessageQueue, Permission
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


def test_a_topic_is_created_on_every_master_and_shown_at_once(admin: Admin, new_name: Callable[[], str]) -> None:
    for _ in range(20):  # a wait that is missing shows in some of them
        name = new_name()
        admin.create_topic(name, queues=3)
        assert shapes(admin, name) == dict.fromkeys(("broker-a", "broker-b"), (3, 3, Permission.READ_WRITE))
        assert name in admin.list_topics()
        admin.delete_topic(name)


def test_every_name_server_shows_a_topic_that_was_created(pair: LocalCluster) -> None:
    with Admin(pair.nameserver) as admin:
        admin.create_topic("orders", 2)
    for server in pair.nameservers:
        link = NameServerLink(server.address)
        assert [data.broker_name for data in link.route("orders", 5).queues] == ["broker-a", "broker-b"]
        link.close()


def test_read_and_write_queues_and_permission_can_differ(admin: Admin, new_name: Callable[[], str]) -> None:
    name = new_name()
    admin.create_topic(name, read_queues=6, write_queues=2, permission=Permission.READ)
    assert shapes(admin, name)["broker-a"] == (6, 2, Permission.READ)
    assert len(admin.describe_topic(name).queues) == 12


def test_a_topic_that_exists_is_refused_or_left_alone(admin: Admin, topic: str) -> None:
    with pytest.raises(TopicExists, match="broker-a has 4 write and 4 read queues"):
        admin.create_topic(topic, queues=4)
    admin.create_topic(topic, queues=4, if_not_exists=True)
    with pytest.raises(TopicExists, match="minimq topic update"):
        admin.create_topic(topic, queues=5, if_not_exists=True)
    assert shapes(admin, topic)["broker-b"] == (4, 4, Permission.READ_WRITE)


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


def test_a_broker_that_hangs_is_named_and_nothing_is_changed(pair: LocalCluster) -> None:
    with Admin(pair.nameserver, timeout_s=0.5) as admin:
        pair.server("broker-b").pause()
        with pytest.raises(DeadlineExceeded, match=r"on 1 of 2 brokers: broker-b \(127.*nothing was changed"):
            admin.create_topic("orders")
        assert admin.list_topics() == []
        pair.server("broker-b").resume()
        admin.create_topic("orders")
        assert list(shapes(admin, "orders")) == ["broker-a", "broker-b"]


def test_a_name_server_that_is_down_or_hangs_is_not_waited_for(pair: LocalCluster) -> None:
    with Admin(pair.nameserver) as admin:
        pair.nameservers[0].kill()
        admin.create_topic("one")
        pair.nameservers[0].start()
        pair.nameservers[1].pause()
        admin.create_topic("two")
        pair.nameservers[1].resume()
        assert admin.list_topics() == ["one", "two"]


def test_a_name_server_that_does_not_show_the_topic_in_time_is_named(pair: LocalCluster) -> None:
    with LocalCluster(brokers=1) as other:
        other.brokers[0].stop()  # a name server that answers and never hears of the brokers
        with Admin(f"{pair.nameserver},{other.nameserver}", timeout_s=0.3) as admin:
            lag = f"{other.nameserver} lags 0.3 s behind: broker broker-a is not registered there"
            with pytest.raises(DeadlineExceeded, match=lag):
                admin.create_topic("orders")
            with pytest.raises(DeadlineExceeded, match=lag):
                admin.update_topic("orders", write_queues=2)
            admin.update_topic("orders", write_queues=3, wait=False)
            admin.create_topic("two", wait=False)
            assert {item.write_queues for item in admin.describe_topic("orders").settings} == {3}
            admin.delete_topic("orders")


def test_a_route_is_asked_for_without_watching_it(admin: Admin, topic: str) -> None:
    before = set(threading.enumerate())
    assert admin.route(topic).topic == topic
    assert set(threading.enumerate()) <= before


def between_change_and_wait(admin: Admin, act: Callable[[], object]) -> list[dict[str, int]]:
    """Have something done between what brokers do and the wait for name servers; return the versions waited for."""
    wait = admin._masters.wait_until_shown
    waited_for: list[dict[str, int]] = []

    def act_and_wait(versions: Mapping[str, int], *, gone: bool = False) -> None:
        waited_for.append(dict(versions))
        act()
        wait(versions, gone=gone)

    admin._masters.wait_until_shown = act_and_wait  # type: ignore[method-assign]
    return waited_for


def test_a_change_is_shown_also_when_another_admin_changes_the_same_topic(cluster: LocalCluster, topic: str) -> None:
    with Admin(cluster.nameserver, timeout_s=1.0) as admin, Admin(cluster.nameserver) as other:
        between_change_and_wait(admin, lambda: other.update_topic(topic, permission=Permission.READ_WRITE))
        admin.update_topic(topic, permission=Permission.READ)
        assert {shape[2] for shape in shapes(admin, topic).values()} == {Permission.READ_WRITE}


def test_every_change_has_a_version_and_name_servers_show_it(
    cluster: LocalCluster, new_name: Callable[[], str]
) -> None:
    link, name = NameServerLink(cluster.nameserver), new_name()
    with Admin(cluster.nameserver) as admin, closing(link):
        waited_for = between_change_and_wait(admin, lambda: None)
        shown: list[int] = []
        for change in (
            lambda: admin.create_topic(name, 1),
            lambda: admin.update_topic(name, permission=Permission.READ),
            lambda: admin.set_broker_permission("broker-a", Permission.READ_WRITE),
            lambda: admin.create_topic(
                name, 1, permission=Permission.READ, if_not_exists=True
            ),  # which changes nothing
            lambda: admin.delete_topic(name),
        ):
            change()
            shown.append(link.view(1.0).versions["broker-a", 0])
        versions = [version["broker-a"] for version in waited_for]
        assert versions[0] < versions[1] < versions[2] == versions[3] < versions[4]
        assert all(one >= other for one, other in zip(shown, versions, strict=True))
        assert {len(version) for version in waited_for} == {1, 2}


@pytest.mark.fault
def test_a_broker_that_has_left_is_named(pair: LocalCluster) -> None:
    broker = pair.server("broker-b")
    with Admin(pair.nameserver, timeout_s=0.3) as admin:
        between_change_and_wait(admin, broker.stop)
        with pytest.raises(DeadlineExceeded, match="broker broker-b is not registered there"):
            admin.create_topic("orders", 1)
        broker.start()
        assert sorted(shapes(admin, "orders")) == ["broker-a", "broker-b"]
        admin.delete_topic("orders")  # nobody shows it: that the broker left meanwhile makes no difference


@pytest.mark.fault
def test_a_broker_that_comes_back_shows_what_it_did_before(pair: LocalCluster) -> None:
    broker = pair.server("broker-b")
    with Admin(pair.nameserver, timeout_s=20) as admin:
        starting = threading.Thread(target=broker.start)

        def restart() -> None:
            broker.kill()
            wait_until(lambda: [each.broker_name for each in admin.cluster()] == ["broker-a"])
            starting.start()

        between_change_and_wait(admin, restart)
        admin.create_topic("orders", 1)
        assert sorted(shapes(admin, "orders")) == ["broker-a", "broker-b"]
        starting.join()


# ---- name servers that have just started ------------------------------------------------------------


@pytest.mark.fault
def test_a_change_waits_for_the_brokers_of_a_restarted_name_server() -> None:
    with LocalCluster(brokers=2) as own, Admin(own.nameserver) as admin:
        admin.create_topic("old", 1)
        [nameserver] = own.nameservers
        broker = own.server("broker-b")
        broker.pause()  # so that it cannot be back at once
        nameserver.kill()
        nameserver.start()
        link = NameServerLink(nameserver.address)
        with closing(link):
            view = link.view(1.0)
            assert not view.settled
            assert [each.broker_name for each in view.brokers] == ["broker-a"]
            assert admin.list_topics() == ["old"]  # a question is answered from what is known
            resuming = threading.Timer(0.1, broker.resume)
            resuming.start()
            assert admin.create_topic("new", 1)
            assert link.view(1.0).settled
        resuming.join()
        assert sorted(shapes(admin, "new")) == ["broker-a", "broker-b"]


@pytest.mark.fault
def test_a_name_server_that_has_not_settled_is_named_and_a_settled_one_is_enough() -> None:
    with (
        LocalCluster(brokers=1, nameservers=2) as own,
        Admin(own.nameservers[0].address, timeout_s=0.1) as alone,
        Admin(own.nameserver, timeout_s=5) as both,
    ):
        own.nameservers[0].kill()
        own.nameservers[0].start()
        for change in (
            lambda: alone.create_topic("t", 1),
            lambda: alone.delete_topic("t"),
            lambda: alone.set_broker_permission("broker-a", Permission.READ),
        ):
            with pytest.raises(SystemBusy, match=f"{own.nameservers[0].address} has just started"):
                change()
        assert [each.broker_name for each in alone.cluster()] == ["broker-a"]
        assert both.create_topic("t", 1)


def test_waiting_for_a_change_ends_with_what_was_missing(cluster: LocalCluster) -> None:
    links = NameServerLinks([cluster.nameserver], 5)
    answers = iter(["a", "b", None])
    links.wait_until_shown(lambda _: next(answers), 5)
    assert list(answers) == []
    with pytest.raises(DeadlineExceeded, match="still there"):
        links.wait_until_shown(lambda _: "still there", 0.1)
    links.close()
    with pytest.raises(Closed):
        links.wait_until_shown(lambda _: None, 5)


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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": ""}, "topic name is empty"),
        ({"name": "a b"}, "illegal topic name"),
        ({"name": "a" * 128}, "the limit is 127"),
        ({"name": "x", "queues": 0}, "0 read queues"),
        ({"name": "x", "queues": 1025}, "1 to 1024"),
        ({"name": "x", "queues": -1}, "-1 read queues"),
        ({"name": "x", "permission": Permission.NONE}, "readable or writable"),
        ({"name": "x", "cluster": "nowhere"}, "no cluster 'nowhere': the name server knows default"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_the_rule(admin: Admin, arguments: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        admin.create_topic(**arguments)  # type: ignore[arg-type]  # that is the point
    assert "x" not in admin.list_topics()


# ---- Some brokers only --------------------------------------------------------------------------


def test_brokers_can_have_different_counts(admin: Admin, new_name: Callable[[], str]) -> None:
    name = new_name()
    assert admin.create_topic(name, queues=2, brokers=["broker-b"])
    assert list(shapes(admin, name)) == ["broker-b"]
    assert admin.create_topic(name, queues=5, brokers=["broker-a"])
    assert [shape[:2] for shape in shapes(admin, name).values()] == [(5, 5), (2, 2)]
    assert not admin.create_topic(name, queues=2, brokers=["broker-b"], if_not_exists=True)
    with pytest.raises(TopicExists, match="broker-a has 5 write"):
        admin.create_topic(name, queues=2)
    admin.update_topic(name, read_queues=7, permission=Permission.READ, brokers=["broker-b"])
    assert shapes(admin, name) == {
        "broker-a": (5, 5, Permission.READ_WRITE),
        "broker-b": (7, 2, Permission.READ),
    }
    admin.delete_topic(name, brokers=["broker-b"])
    assert list(shapes(admin, name)) == ["broker-a"]
    with pytest.raises(TopicNotFound, match=f"not on broker-b: .*minimq topic create {name} --broker broker-b"):
        admin.update_topic(name, write_queues=1, brokers=["broker-a", "broker-b"])
    assert shapes(admin, name)["broker-a"][:2] == (5, 5)


def test_a_broker_that_is_not_there_is_refused_with_the_list(admin: Admin, topic: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: admin.create_topic("x", brokers=["broker-a", "broker-z"]),
        lambda: admin.update_topic(topic, write_queues=1, brokers=["broker-z"]),
        lambda: admin.resize_topic(topic, 1, brokers=["broker-z"]),
        lambda: admin.delete_topic(topic, brokers=["broker-z"], if_exists=True),
        lambda: admin.set_broker_permission("broker-z", Permission.READ),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="no broker 'broker-z': the name server knows broker-a, broker-b"):
            call()
    assert [shape[:2] for shape in shapes(admin, topic).values()] == [(4, 4), (4, 4)]
    assert "x" not in admin.list_topics()


# ---- Update, delete -----------------------------------------------------------------------------


def test_an_update_changes_what_is_given_and_keeps_the_rest(admin: Admin, topic: str) -> None:
    admin.update_topic(topic, write_queues=2)
    assert shapes(admin, topic)["broker-a"] == (4, 2, Permission.READ_WRITE)
    admin.update_topic(topic, read_queues=6, write_queues=6)
    assert shapes(admin, topic)["broker-b"] == (6, 6, Permission.READ_WRITE)
    admin.update_topic(topic, permission=Permission.NONE)
    assert shapes(admin, topic)["broker-b"] == (6, 6, Permission.NONE)
    assert [item.read_queues for item in admin.describe_topic(topic).settings] == [6, 6]


def test_messages_do_not_go_out_of_sight_unless_forced(admin: Admin, topic: str, cluster: LocalCluster) -> None:
    with Producer(cluster.nameserver) as producer:
        for _ in range(3):
            producer.send(Message(topic, b"body"), queue=MessageQueue(topic, "broker-b", 3))
    admin.update_topic(topic, write_queues=2)
    reason = r"on 1 of 2 brokers: broker-b .*no group has read 3 messages of queue 3: .*--force"
    with pytest.raises(NotDrained, match=reason):
        admin.update_topic(topic, read_queues=2)
    assert [shape[:2] for shape in shapes(admin, topic).values()] == [(2, 2), (4, 2)]
    admin.update_topic(topic, read_queues=2, force=True)
    assert [shape[:2] for shape in shapes(admin, topic).values()] == [(2, 2), (2, 2)]
    admin.update_topic(topic, read_queues=4)
    assert admin.describe_topic(topic).messages == 3


def test_what_may_be_sent_may_be_read(admin: Admin, topic: str) -> None:
    with pytest.raises(InvalidArgument, match="2 read queues and 3 write queues: nobody could read"):
        admin.create_topic("x", read_queues=2, write_queues=3)
    for counts in ({"read_queues": 3}, {"write_queues": 5}):
        with pytest.raises(InvalidArgument, match="nobody could read"):
            admin.update_topic(topic, **counts)  # type: ignore[arg-type]  # mypy does not see which names these are
    admin.update_topic(topic, read_queues=3, force=True)
    admin.update_topic(topic, permission=Permission.READ)
    assert shapes(admin, topic)["broker-b"] == (3, 4, Permission.READ)


def test_an_update_of_nothing_or_of_no_topic_is_refused(admin: Admin, topic: str) -> None:
    with pytest.raises(InvalidArgument, match="nothing is to be changed"):
        admin.update_topic(topic)
    with pytest.raises(InvalidArgument, match="0 write queues"):
        admin.update_topic(topic, write_queues=0)
    with pytest.raises(TopicNotFound, match="minimq topic list"):
        admin.update_topic("no-such-topic", write_queues=2)


def test_a_deleted_topic_is_gone_at_once(admin: Admin, topic: str) -> None:
    admin.route(topic)
    admin.delete_topic(topic)
    assert topic not in admin.list_topics()
    with pytest.raises(TopicNotFound):
        admin.route(topic)
    with pytest.raises(TopicNotFound, match=f"minimq topic create {topic}"):
        admin.describe_topic(topic)
    with pytest.raises(TopicNotFound):
        admin.delete_topic(topic)
    admin.delete_topic(topic, if_exists=True)


# ---- Looking ------------------------------------------------------------------------------------


def test_a_new_topic_is_empty(admin: Admin, topic: str) -> None:
    description = admin.describe_topic(topic)
    assert [str(item.queue) for item in description.queues][:2] == [f"{topic}/broker-a/0", f"{topic}/broker-a/1"]
    assert {(item.min_offset, item.max_offset, item.last_stored_at) for item in description.queues} == {(0, 0, None)}
    assert description.messages == 0
    assert abs(description.settings[0].created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert admin.offset_at(description.queues[0].queue, datetime.now(UTC)) == 0


def test_brokers_tell_about_themselves(admin: Admin, cluster: LocalCluster) -> None:
    rows = [(status.cluster, status.broker_name, status.broker_id, status.address) for status in admin.broker_status()]
    assert rows == [("default", broker.name, 0, broker.address) for broker in cluster.brokers]
    assert [broker.master for broker in admin.cluster()] == [broker.address for broker in cluster.brokers]
    for status in admin.broker_status():
        assert status.error is None
        assert status.report is not None
        assert status.report.log_end > status.report.log_start == 0


def test_a_broker_that_hangs_is_in_the_status_with_the_reason(pair: LocalCluster) -> None:
    pair.server("broker-a").pause()
    with Admin(pair.nameserver, timeout_s=0.5) as admin:
        hanging, healthy = admin.broker_status()
    assert hanging.report is None
    assert "deadline" in (hanging.error or "").lower()
    assert healthy.report is not None


def test_a_group_without_commits_has_no_offsets(admin: Admin, topic: str) -> None:
    assert admin.committed_offsets("nobody") == {}
    assert admin.committed_offsets("nobody", topic) == {}


def test_offsets_of_queues_that_are_not_there(admin: Admin, topic: str) -> None:
    now = datetime.now(UTC)
    with pytest.raises(MiniMQError, match="no queue 99"):
        admin.offset_at(MessageQueue(topic, "broker-a", 99), now)
    with pytest.raises(Unavailable, match="broker-z"):
        admin.offset_at(MessageQueue(topic, "broker-z", 0), now)
    with pytest.raises(InvalidArgument, match="time zone"):
        admin.offset_at(MessageQueue(topic, "broker-a", 0), now.replace(tzinfo=None))


# ---- Nobody there -------------------------------------------------------------------------------


def test_without_a_name_server_the_error_says_how_to_start_one() -> None:
    with Admin(NOBODY, timeout_s=1) as admin:
        for call in (admin.list_topics, admin.cluster, admin.broker_status, lambda: admin.create_topic("x")):
            with pytest.raises(Unavailable, match=r"no name server listening at 127\.0\.0\.1:1: start one with"):
                call()


def test_without_a_broker_the_error_says_how_to_start_one(pair: LocalCluster) -> None:
    for broker in pair.brokers:
        broker.stop()
    with Admin(pair.nameserver) as admin, pytest.raises(Unavailable, match="minimq-broker --nameserver 127"):
        admin.create_topic("x")


def test_a_closed_admin_refuses(cluster: LocalCluster) -> None:
    admin = Admin(cluster.nameserver)
    admin.list_topics()
    admin.close()
    admin.close()
    with pytest.raises(Closed):
        admin.list_topics()
    with pytest.raises(Closed):
        admin.create_topic("x")


def test_a_broker_that_was_restarted_is_reached_at_once(pair: LocalCluster) -> None:
    with Admin(pair.nameserver) as admin:
        admin.create_topic("orders")
        for broker in pair.brokers:
            broker.kill()
        for broker in pair.brokers:
            broker.start()
            assert next(iter(shapes(admin, "orders"))) == "broker-a"
        assert len(admin.describe_topic("orders").queues) == 16
