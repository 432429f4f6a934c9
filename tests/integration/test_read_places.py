"""The choice of the replica to read from: the first, those that are passed over, and the return to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minimq import LocalCluster, MessageQueue
from minimq.connection.client import ClusterClient
from minimq.connection.read_places import ReadPlace, ReadPlaces
from minimq_common.errors import NotMaster, Unavailable
from minimq_common.model import BrokerData
from support.waiting import wait_until

PATIENCE_S = 30.0
#: Addresses at which nobody listens.
NOBODY, NOBODY_EITHER = "127.0.0.1:1", "127.0.0.1:2"


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[ClusterClient]:
    made = ClusterClient(cluster.nameserver)
    yield made
    made.close()


def test_the_master_comes_first_and_then_the_slave_with_the_lowest_id(client: ClusterClient) -> None:
    places = ReadPlaces(client)
    assert places.for_group(BrokerData("c", "b", {2: "h:2", 0: "h:0", 1: "h:1"})) == ReadPlace(0, "h:0")
    assert places.for_group(BrokerData("c", "b", {2: "h:2", 1: "h:1"})) == ReadPlace(1, "h:1")
    assert places.for_group(None) is None
    masters_alone = ReadPlaces(client, slaves=False)
    assert masters_alone.for_group(BrokerData("c", "b", {2: "h:2", 1: "h:1"})) is None


def test_a_master_that_gave_no_answer_is_passed_over_until_it_does(
    cluster: LocalCluster, client: ClusterClient
) -> None:
    places = ReadPlaces(client)
    there, gone = cluster.brokers[0].address, NOBODY
    for address in (there, gone):
        places.failed(address, Unavailable("the connection broke"))
    gone_master = BrokerData("c", "b", {0: gone, 1: there})
    assert places.for_group(gone_master) == ReadPlace(1, there)
    answering = BrokerData("c", "b", {0: there, 1: gone})
    wait_until(lambda: places.for_group(answering) == ReadPlace(0, there), PATIENCE_S)
    assert places.for_group(gone_master) == ReadPlace(1, there)


def test_members_of_a_group_never_pass_a_slave_over(client: ClusterClient) -> None:
    """Others may reach it: two slaves would have the same group."""
    places = ReadPlaces(client)
    first, second = NOBODY, NOBODY_EITHER
    places.failed(first, Unavailable("the connection broke"))
    assert places.for_group(BrokerData("c", "b", {1: first, 2: second})) == ReadPlace(1, first)


def test_a_master_that_has_answered_or_ended_a_stream_in_good_order_is_not_passed_over(client: ClusterClient) -> None:
    places = ReadPlaces(client)
    address = NOBODY
    places.failed(address, NotMaster("it is elsewhere"))
    places.failed(address, None)
    assert places.for_group(BrokerData("c", "b", {0: address, 1: "h:1"})) == ReadPlace(0, address)


def test_a_queue_without_a_route_has_no_place(client: ClusterClient) -> None:
    places = ReadPlaces(client)
    queue = MessageQueue("unknown", "broker-a", 0)
    with pytest.raises(Unavailable, match="is broker-a running"):
        places.of(queue)
    assert places.slave(queue, 1) is None
