"""The choice of the replica to read from: the first, those that are passed over, and the return to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from minimq import LocalCluster, MessageQueue
from minimq.connection.client import ClusterClient
from minimq.connection.replica_selector import ReadReplica, ReplicaSelector
from minimq_common.errors import NotMaster, Unavailable
from minimq_common.model import BrokerData, Permission, QueueData, TopicRoute
from support.waiting import wait_until

TIMEOUT_S = 30.0
#: Nobody listens there.
NOBODY = "127.0.0.1:1"
TOPICS = itertools.count()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[ClusterClient]:
    made = ClusterClient(cluster.nameserver)
    yield made
    made.close()


def place_of(client: ClusterClient, addresses: dict[int, str], *, slaves: bool = True) -> ReadReplica:
    """Return where a queue of a broker with these addresses is read."""
    topic = f"t{next(TOPICS)}"
    data = (QueueData("b", 1, 1, Permission.READ_WRITE),)
    client.routes.learn(TopicRoute(topic, data, {"b": BrokerData("c", "b", addresses)}))
    return ReplicaSelector(client, slaves=slaves).of(MessageQueue(topic, "b", 0))


def test_the_master_comes_first_and_then_the_slave_with_the_lowest_id(client: ClusterClient) -> None:
    assert place_of(client, {2: "h:2", 0: "h:0", 1: "h:1"}) == ReadReplica(0, "h:0")
    assert place_of(client, {2: "h:2", 1: "h:1"}) == ReadReplica(1, "h:1")
    with pytest.raises(Unavailable, match="slaves are not to be read"):
        place_of(client, {2: "h:2", 1: "h:1"}, slaves=False)


def test_a_broker_that_gave_no_answer_is_passed_over_until_it_does(
    cluster: LocalCluster, client: ClusterClient
) -> None:
    there, gone = cluster.brokers[0].address, NOBODY
    for address in (there, gone):
        ReplicaSelector(client).failed(address, Unavailable("the connection broke"))
    wait_until(lambda: place_of(client, {0: gone, 1: there}) == ReadReplica(1, there), TIMEOUT_S)
    assert place_of(client, {0: there, 1: gone}) == ReadReplica(0, there)


def test_a_master_that_has_answered_or_ended_a_stream_in_good_order_is_not_passed_over(client: ClusterClient) -> None:
    places = ReplicaSelector(client)
    places.failed(NOBODY, NotMaster("it is elsewhere"))
    places.failed(NOBODY, None)
    assert place_of(client, {0: NOBODY, 1: "h:1"}) == ReadReplica(0, NOBODY)


def test_a_queue_without_a_route_has_no_place(client: ClusterClient) -> None:
    places = ReplicaSelector(client)
    queue = MessageQueue("unknown", "broker-a", 0)
    with pytest.raises(Unavailable, match="is broker-a running"):
        places.of(queue)
