"""Brokers that die, hang and come back, and a cluster that is lost: pages show what is left, and say what is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minimq import Admin, Message, Producer
from minimq.local.local_cluster import LocalCluster
from minimq_cli.console import serving_console
from support.console_visitor import ConsoleVisitor
from support.waiting import wait_until

pytestmark = pytest.mark.fault

#: Far more than the two seconds of a page, for machines that are busy, and far less than any timeout of a call.
MAX_S = 8.0


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("orders", queues=2)
        with Producer(cluster.nameserver) as producer:
            for _ in range(4):  # one by one: a message in each queue, so that a group lags whichever broker dies
                producer.send(Message("orders", b"x"))
        for group in ("billing", "audit"):
            admin.reset_offset(group, "orders")
        yield cluster


@pytest.fixture(scope="module")
def own_console(own_cluster: LocalCluster) -> Iterator[ConsoleVisitor]:
    with serving_console(own_cluster.nameserver, "127.0.0.1", 0, interval_s=0.2) as served:
        yield ConsoleVisitor(served.address)


def test_a_broker_that_hangs_holds_no_page_and_is_named(own_cluster: LocalCluster, own_console: ConsoleVisitor) -> None:
    hanging = own_cluster.brokers[1]
    hanging.pause()
    try:
        for path in ("/", "/topics/orders", "/groups", "/transactions"):
            answer = own_console.get(path)
            assert answer.took_s < MAX_S, path
            assert answer.status == 200, answer.text
        page = own_console.data("/topics/orders")
        assert [each["broker"] for each in page["topic"]["brokers"]] == ["broker-a"]
        assert any("broker-b" in sentence for sentence in page["missing"])
        assert (
            "queue broker-b:0 cannot be read: broker broker-b: "
            in own_console.get("/topics/orders?queue=broker-b:0").text
        )
        assert "This page is incomplete" in own_console.get("/topics/orders").text
    finally:
        hanging.resume()
    wait_until(lambda: not own_console.data("/topics/orders")["missing"])


def test_what_an_absent_broker_holds_is_unknown_and_not_nothing(
    own_cluster: LocalCluster, own_console: ConsoleVisitor
) -> None:
    with Admin(own_cluster.nameserver) as admin, Producer(own_cluster.nameserver) as producer:
        admin.create_topic("elsewhere", queues=1, brokers=["broker-b"])
        producer.send(Message("elsewhere", b"x"))
    own_cluster.brokers[1].kill()
    try:
        wait_until(lambda: "offline: its queues" in own_console.get("/topics/elsewhere").text)
        assert "<dt>Messages</dt><dd>\N{EN DASH}</dd>" in own_console.get("/topics/elsewhere").text
        for path in ("/topics/elsewhere", "/topics/orders", "/topics/orders/tail"):
            shown = own_console.get(f"{path}?queue=broker-b:0").text
            assert "queue broker-b:0 cannot be read: broker-b is offline since " in shown
        assert "broker broker-a: no such queue" in own_console.get("/topics/orders?queue=broker-a:9").text
        delayed = own_console.data("/delayed")
        assert {each["topic"]: each["messages"] for each in delayed["topics"]} == {"elsewhere": None, "orders": None}
        for page in (delayed, own_console.data("/delayed/orders"), own_console.data("/transactions")):
            assert any(sentence.startswith("broker-b: offline since") for sentence in page["missing"])
    finally:
        own_cluster.brokers[1].start()


def test_a_console_of_no_cluster_says_so() -> None:
    with serving_console("127.0.0.1:1", "127.0.0.1", 0) as served:
        page = ConsoleVisitor(served.address).data("/")
        assert page["replicas"] == []
        assert page["missing"]
