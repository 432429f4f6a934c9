"""Topics that are made because a producer needs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from minimq import Admin, LocalCluster, Message, Producer
from minimq.connection.client import ClusterClient
from minimq.local.server_process import ServerProcess
from minimq.sending.chosen_queues import ChosenQueues
from minimq.sending.topic_finder import TopicFinder
from minimq_common.errors import DeadlineExceeded, InvalidArgument, TopicNotFound
from support.waiting import wait_until

pytestmark = pytest.mark.system


class Asking:
    """Has topics made, for threads."""

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self.finder = TopicFinder(client, ChosenQueues(), 6.0)

    def create(self, topic: str) -> bool:
        return self.client.wait(lambda: self.finder.create(topic, 6.0))


@contextmanager
def asking(cluster: LocalCluster) -> Iterator[Asking]:
    with closing(ClusterClient(cluster.nameserver)) as client:
        yield Asking(client)


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


def test_a_topic_that_is_deleted_under_a_producer_stays_deleted(willing: LocalCluster) -> None:
    with Producer(willing.nameserver) as producer, Admin(willing.nameserver) as admin:
        admin.create_topic("deleted", 1)
        producer.send(Message("deleted", b"x"))
        admin.delete_topic("deleted")
        for _ in range(2):
            with pytest.raises(TopicNotFound, match="minimq topic create deleted"):
                producer.send(Message("deleted", b"x"))
        with pytest.raises(TopicNotFound, match="minimq topic create deleted"):
            producer.send_many([Message("deleted", b"x")])
        admin.create_topic("deleted", 1)
        producer.send(Message("deleted", b"x"))
        admin.delete_topic("deleted")
        with Producer(willing.nameserver) as another:
            another.send(Message("deleted", b"x"))  # its first use
    action = r"topic created automatically name=deleted old='-' new='3 read queues, 3 write queues, read-write'"
    assert re.search(
        rf"administration: {action} caller=\S+ client=- user=-$", willing.brokers[0].log_path.read_text(), re.M
    )


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
        with pytest.raises(TopicNotFound, match=r"minimq topic create nothing.*--auto-create-queues") as rejected:
            automatic.create("nothing")
        assert "brokers: " not in str(rejected.value)  # all say the same, so it is said once
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


@pytest.mark.fault
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


@pytest.mark.fault
def test_a_broker_that_hangs_is_passed_over_and_named() -> None:
    with LocalCluster(brokers=2, broker_options={"auto_create_queues": 1}) as own:
        own.brokers[0].pause()
        with Producer(own.nameserver, send_timeout_s=3.0) as producer:
            assert producer.send(Message("fresh", b"x")).queue.broker_name == "broker-b"
        own.brokers[1].pause()
        with asking(own) as automatic, pytest.raises(DeadlineExceeded) as failed:
            automatic.client.wait(lambda: automatic.finder._find_or_make("later", True, 4.0))
        assert all(broker.address in failed.value.message for broker in own.brokers)
        for broker in own.brokers:
            broker.resume()
