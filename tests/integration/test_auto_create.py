"""Topics that are made because a producer needs them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, Permission, Producer
from minimq.connection.client import ClusterClient
from minimq.local.server_process import ServerProcess
from minimq.sending import topic_finder
from minimq.sending.chosen_queues import ChosenQueues
from minimq.sending.topic_finder import TopicFinder
from minimq_common.errors import Closed, DeadlineExceeded, InvalidArgument, TopicNotFound, Unavailable
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
            automatic.client.wait(lambda: automatic.finder._find_or_make("later", True, [], 4.0))
        assert all(broker.address in failed.value.message for broker in own.brokers)
        for broker in own.brokers:
            broker.resume()


def test_without_a_broker_nothing_is_made() -> None:
    with LocalCluster(brokers=1, broker_options={"auto_create_queues": 1}) as own, asking(own) as automatic:
        own.brokers[0].stop()
        with pytest.raises(Unavailable, match="broker-a is offline since"):
            automatic.create("never")


@pytest.mark.fault
def test_the_failure_of_a_broker_that_may_have_the_option_comes_before_rejections() -> None:
    with LocalCluster(brokers=2) as own:
        own.server("broker-b").pause()
        text = r"2 of 2 brokers: broker-b .*not answered in time.*; broker-a .*creates none automatically"
        with closing(ClusterClient(own.nameserver, 0.5)) as client, pytest.raises(DeadlineExceeded, match=text):
            Asking(client).create("orders")


def broker_commits(admin: Admin) -> int:
    return sum(status.report.commits for status in admin.broker_status() if status.report)


def test_a_rejection_is_remembered_for_a_while_and_no_work_for_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_finder, "_REJECTED_S", 3_600.0)
    with LocalCluster(brokers=1) as own, asking(own) as automatic, Admin(own.nameserver) as admin:
        wait_until(lambda: broker_commits(admin) == 1, what="the term of the broker to be written")
        asked: list[str] = []
        brokers = automatic.client.connection.brokers
        call_all = brokers.call_all

        def count(*args: Any) -> Any:
            asked.append("")
            return call_all(*args)

        brokers.call_all = count  # type: ignore[assignment,method-assign]

        def rejected() -> int:
            with pytest.raises(TopicNotFound, match="creates none automatically"):
                automatic.create("typo")
            return len(asked)

        assert [rejected() for _ in range(100)] == [1] * 100
        automatic.finder._asked.clear()  # as if the time had passed
        assert rejected() == 2
        with pytest.raises(TopicNotFound):
            automatic.create("another")
        assert rejected() == 3
        assert broker_commits(admin) == 1


def test_threads_of_one_client_share_a_question(willing: LocalCluster) -> None:
    with asking(willing) as automatic:
        ask, asked = automatic.finder._ask, []

        async def ask_when_all_wait(topic: str, timeout_s: float) -> bool:
            asked.append(topic)
            await asyncio.to_thread(wait_until, lambda: len(automatic.client.under_way) == 8)
            return await ask(topic, timeout_s)

        automatic.finder._ask = ask_when_all_wait  # type: ignore[method-assign]
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: automatic.create("shared"), range(8)))
        assert (sum(made), asked) == (1, ["shared"])
        assert automatic.finder._asked == {}


def test_threads_that_share_a_question_share_its_failure(cluster: LocalCluster) -> None:
    with asking(cluster) as automatic:
        ask = automatic.finder._ask

        async def ask_when_one_waits(topic: str, timeout_s: float) -> bool:
            await asyncio.to_thread(wait_until, lambda: len(automatic.client.under_way) == 2)
            return await ask(topic, timeout_s)

        def error_of(_: int) -> TopicNotFound:
            with pytest.raises(TopicNotFound) as raised:
                automatic.create("typo")
            return raised.value

        automatic.finder._ask = ask_when_one_waits  # type: ignore[method-assign]
        with ThreadPoolExecutor(2) as pool:
            one, two = pool.map(error_of, range(2))
        assert one is not two
        assert one.message == two.message


def test_who_waits_for_one_that_is_cancelled_still_gets_the_topic(willing: LocalCluster) -> None:
    """As after Ctrl-C in a thread."""
    with asking(willing) as automatic:
        ask = automatic.finder._ask

        async def ask_when_one_has_gone(topic: str, timeout_s: float) -> bool:
            await asyncio.to_thread(wait_until, lambda: len(automatic.client.under_way) == 2)
            next(iter(automatic.client.under_way)).cancel()
            await asyncio.to_thread(wait_until, lambda: len(automatic.client.under_way) == 1)
            return await ask(topic, timeout_s)

        def outcome(_: int) -> bool | None:
            try:
                automatic.create("interrupted")
            except Closed:
                return False
            return True

        automatic.finder._ask = ask_when_one_has_gone  # type: ignore[method-assign]
        with ThreadPoolExecutor(2) as pool:
            assert set(pool.map(outcome, range(2))) == {True, False}


def test_a_closed_one_asks_nobody(willing: LocalCluster) -> None:
    with asking(willing) as automatic:
        automatic.client.close()
        with pytest.raises(Closed):
            automatic.create("never")
