"""Routes that no broker can have are refused before a client makes their queues."""

from __future__ import annotations

import pytest

from minimq_common.errors import InvalidArgument
from minimq_common.model import MAX_QUEUES, BrokerData, Permission, QueueData, TopicRoute
from minimq_common.wire import route_from_wire, route_to_wire
from minimq_proto.v1 import nameserver_pb2


def route(read: int, write: int) -> TopicRoute:
    brokers = {"broker-a": BrokerData("default", "broker-a", {0: "127.0.0.1:1"})}
    return TopicRoute("t", (QueueData("broker-a", read, write, Permission.READ_WRITE),), brokers)


def test_a_route_comes_back_from_the_wire() -> None:
    assert route_from_wire(route_to_wire(route(MAX_QUEUES, 0))) == route(MAX_QUEUES, 0)


@pytest.mark.parametrize(("read", "write"), [((1 << 31) - 1, 1), (1, MAX_QUEUES + 1), (-1, 1)])
def test_more_queues_than_a_topic_can_have_are_refused(read: int, write: int) -> None:
    with pytest.raises(InvalidArgument, match=r"queues on broker 'broker-a', the limit is 1024"):
        route_from_wire(route_to_wire(route(read, write)))


def test_no_time_of_a_broker_that_went_spoils_a_route() -> None:
    message = nameserver_pb2.TopicRoute(topic="t", away=[nameserver_pb2.AwayBroker(since_ms=(1 << 63) - 1)])

    [away] = route_from_wire(message).away

    assert away.since.year == 9999
