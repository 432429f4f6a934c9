"""Topics that are made because a producer needs them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from minimq import Admin, LocalCluster, Message, Permission, Producer
from minimq.administration.fan_out import FanOut
from minimq.local.server_process import ServerProcess
from minimq.options import nameserver_addresses
from minimq.routes.nameserver_link import NameServerLinks
from minimq.sending.auto_create import AutoCreate
from minimq_common.errors import InvalidArgument, TopicNotFound, Unavailable
from support.waiting import wait_until

pytestmark = pytest.mark.system


@contextmanager
def asking(cluster: LocalCluster) -> Iterator[AutoCreate]:
    nameservers, calls = NameServerLinks(nameserver_addresses(cluster.nameserver), 5.0), FanOut(5.0)
    try:
        yield AutoCreate(nameservers, calls)
    finally:
        nameservers.close()
        calls.close()


@pytest.fixture(scope="module")
def willing() -> Iterator[LocalCluster]:
    """Two name servers and two brokers that make topics of three queues."""
    with LocalCluster(brokers=2, nameservers=2, broker_options={"auto_create_queues": 3}) as own:
        yield own


def test_each_broker_makes_it_with_its_own_number_of_queues(willing: LocalCluster) -> None:
    with asking(willing) as automatic, Admin(willing.nameserver) as admin:
        assert automatic.create("orders")
        settings = [(data.broker_name, data.read_queues, data.write_queues) for data in admin.route("orders").queues]
        assert settings == [("broker-a", 3, 3), ("broker-b", 3, 3)]
        assert not automatic.create("orders")


def test_a_topic_that_is_there_stays_as_it_is(willing: LocalCluster) -> None:
    with asking(willing) as automatic, Admin(willing.nameserver) as admin:
        admin.create_topic("own", 1, permission=Permission.READ)
        assert not automatic.create("own")
        assert {(data.write_queues, data.permission) for data in admin.route("own").queues} == {(1, Permission.READ)}
        admin.create_topic("half", 1, brokers=["broker-a"])
        assert automatic.create("half")
        assert [data.write_queues for data in admin.route("half").queues] == [1, 3]


def test_producers_that_ask_at_the_same_time_get_one_topic(willing: LocalCluster) -> None:
    with asking(willing) as first, asking(willing) as second, Admin(willing.nameserver) as admin:
        with ThreadPoolExecutor(16) as pool:
            for number in range(5):
                name = f"together-{number}"
                made = list(pool.map(lambda client, name=name: client.create(name), [first, second] * 8))
                assert 1 <= sum(made) <= 2  # each broker has made it for one of them
                assert [data.write_queues for data in admin.route(name).queues] == [3, 3]
        with Producer(willing.nameserver) as producer:
            assert producer.send(Message("together-0", b"x")).queue_offset == 0


def test_it_is_off_unless_it_is_asked_for(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    with asking(cluster) as automatic:
        with pytest.raises(TopicNotFound, match=r"minimq topic create nothing.*--auto-create-queues") as refused:
            automatic.create("nothing")
        assert "brokers: " not in str(refused.value)  # all say the same, so it is said once
        assert not automatic.create(topic)
    assert "nothing" not in admin.list_topics()


@pytest.mark.parametrize(("name", "kind"), [("%RETRY%g", TopicNotFound), ("a b", InvalidArgument)])
def test_names_that_are_not_for_everybody_are_never_made(willing: LocalCluster, name: str, kind: type) -> None:
    with asking(willing) as automatic, Admin(willing.nameserver) as admin:
        with pytest.raises(kind):
            automatic.create(name)
        assert name not in admin.list_topics()


@contextmanager
def another_broker(cluster: LocalCluster, name: str, *flags: str) -> Iterator[None]:
    """Run one more broker, with options of its own."""

    def all_flags(address: str, _first: bool) -> list[str]:
        data = f"--data-dir={cluster.data_dir / name}"
        return [f"--name={name}", data, f"--listen={address}", f"--nameserver={cluster.nameserver}", *flags]

    broker = ServerProcess("broker", name, cluster.data_dir, flags=all_flags, settled=lambda: None)
    try:
        broker.start()
        with Admin(cluster.nameserver) as admin:
            wait_until(lambda: name in [known.broker_name for known in admin.cluster()], 20.0)
        yield
    finally:
        broker.stop()
        broker.close()


def test_one_broker_with_the_option_is_enough() -> None:
    with (
        LocalCluster(brokers=1) as own,
        another_broker(own, "broker-w", "--auto-create-queues=2"),
        asking(own) as automatic,
        Admin(own.nameserver) as admin,
    ):
        admin.create_topic("there", 1, brokers=["broker-a"])
        assert automatic.create("orders")
        assert [(data.broker_name, data.write_queues) for data in admin.route("orders").queues] == [("broker-w", 2)]
        assert automatic.create("there")  # where it was missing
        own.brokers[0].kill()
        assert automatic.create("later")


def test_without_a_broker_nothing_is_made() -> None:
    with LocalCluster(brokers=1, broker_options={"auto_create_queues": 1}) as own, asking(own) as automatic:
        own.brokers[0].stop()
        with pytest.raises(Unavailable, match="no broker is registered"):
            automatic.create("never")


def test_the_failure_of_a_broker_that_may_have_the_option_comes_before_refusals() -> None:
    with LocalCluster(brokers=2) as own:
        nameservers, calls = NameServerLinks(nameserver_addresses(own.nameserver), 5.0), FanOut(0.5)
        own.server("broker-b").pause()
        with pytest.raises(Exception, match=r"2 of 2 brokers: broker-b .*deadline.*; broker-a .*makes none by itself"):
            AutoCreate(nameservers, calls).create("orders")
        nameservers.close()
        calls.close()
