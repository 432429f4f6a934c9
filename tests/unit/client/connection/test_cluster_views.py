"""Views of one cluster by several name servers, merged."""

from __future__ import annotations

from minimq.connection.offline_brokers import ClusterView, merge
from minimq_common.model import BrokerData


def view(cluster: str, addresses: dict[int, str]) -> ClusterView:
    return ClusterView((BrokerData(cluster, "broker-a", addresses),), {}, settled=True)


def test_a_broker_is_as_the_first_name_server_has_it_with_the_replicas_that_only_others_know() -> None:
    views = [view("new", {0: "a:1", 2: "a:3"}), view("old", {0: "b:1", 1: "b:2"})]
    assert merge(views) == [BrokerData("new", "broker-a", {0: "a:1", 1: "b:2", 2: "a:3"})]
    assert merge(views[::-1]) == [BrokerData("old", "broker-a", {0: "b:1", 1: "b:2", 2: "a:3"})]
