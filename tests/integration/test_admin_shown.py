"""That changes through `Admin` are shown by name servers when it says so, on real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import pytest

from minimq.admin.admin import Admin
from minimq.admin.master_client import Versioned
from minimq.local.local_cluster import LocalCluster
from minimq_common.errors import DeadlineExceeded, SystemBusy
from minimq_common.model import Permission
from support.nameserver_client import NameServerClient
from support.waiting import wait_until


@pytest.fixture
def pair() -> Iterator[LocalCluster]:
    """Two name servers and two brokers, for faults."""
    with LocalCluster(brokers=2, nameservers=2) as own:
        yield own


def shapes(admin: Admin, topic: str) -> dict[str, tuple[int, int, Permission]]:
    route = admin.route(topic)
    return {data.broker_name: (data.read_queues, data.write_queues, data.permission) for data in route.queues}


@pytest.mark.fault
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
        with Admin(f"{pair.nameserver},{other.nameserver}", timeout_s=3.0) as admin:
            lag = f"{other.nameserver} lags 3.0 s behind: broker broker-a is not registered there"
            with pytest.raises(DeadlineExceeded, match=lag):
                admin.create_topic("orders")
            with pytest.raises(DeadlineExceeded, match=lag):
                admin.update_topic("orders", write_queues=2)
        with Admin(f"{pair.nameserver},{other.nameserver}", timeout_s=60) as admin:
            assert {item.write_queues for item in admin.describe_topic("orders").settings} == {2}
            admin.delete_topic("orders")


def between_change_and_wait(admin: Admin, act: Callable[[], object]) -> list[dict[str, int]]:
    """Have something done between what brokers do and the wait for name servers; return the versions waited for."""
    wait = admin._masters.wait_until_shown
    waited_for: list[dict[str, int]] = []

    def act_and_wait(answers: Mapping[str, Versioned], *, gone: bool = False) -> None:
        waited_for.append({broker: answer.data_version for broker, answer in answers.items()})
        act()
        wait(answers, gone=gone)

    admin._masters.wait_until_shown = act_and_wait  # type: ignore[method-assign]
    return waited_for


def test_every_change_has_a_version_and_name_servers_show_it(
    cluster: LocalCluster, new_name: Callable[[], str]
) -> None:
    link, name = NameServerClient(cluster.nameserver), new_name()
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
            shown.append(link.view().versions["broker-a", 0])
        versions = [version["broker-a"] for version in waited_for]
        assert versions[0] < versions[1] < versions[2] == versions[3] < versions[4]
        assert all(one >= other for one, other in zip(shown, versions, strict=True))
        assert {len(version) for version in waited_for} == {1, 2}


@pytest.mark.fault
def test_a_broker_that_comes_back_shows_what_it_did_before(pair: LocalCluster) -> None:
    broker = pair.server("broker-b")
    with Admin(pair.nameserver, timeout_s=60) as admin:
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
        link = NameServerClient(nameserver.address)
        with closing(link):
            view = link.view()
            assert not view.settled
            assert [each.broker_name for each in view.brokers] == ["broker-a"]
            assert admin.list_topics() == ["old"]  # a question is answered from what is known
            resuming = threading.Timer(0.1, broker.resume)
            resuming.start()
            assert admin.create_topic("new", 1)
            assert link.view().settled
        resuming.join()
        assert sorted(shapes(admin, "new")) == ["broker-a", "broker-b"]


@pytest.mark.fault
def test_a_name_server_that_has_not_settled_is_named_and_a_settled_one_is_enough() -> None:
    with (
        LocalCluster(brokers=1, nameservers=2) as own,
        Admin(own.nameservers[0].address, timeout_s=0.5) as alone,
        Admin(own.nameserver, timeout_s=60) as both,
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
        with Admin(own.nameservers[0].address) as patient:
            assert [each.broker_name for each in patient.cluster()] == ["broker-a"]
        assert both.create_topic("t", 1)
