"""Routes that no broker can have are rejected before a client makes their queues."""

from __future__ import annotations

from typing import Any

import pytest

from minimq_common.errors import InvalidArgument
from minimq_common.model import MAX_QUEUES, BrokerData, Permission, QueueData, TopicRoute
from minimq_common.wire.convert import route_from_wire
from minimq_common.wire.rpc import to_failure
from minimq_proto.v1 import nameserver_pb2
from support.cases import for_each


def route(read: int, write: int) -> TopicRoute:
    brokers = {"broker-a": BrokerData("default", "broker-a", {0: "127.0.0.1:1"})}
    return TopicRoute("t", (QueueData("broker-a", read, write, Permission.READ_WRITE),), brokers)


def test_no_time_of_a_broker_that_went_spoils_a_route() -> None:
    broker = nameserver_pb2.BrokerData(cluster="default", broker_name="broker-a")
    message = nameserver_pb2.TopicRoute(
        topic="t", offline=[nameserver_pb2.OfflineBroker(broker=broker, since_ms=(1 << 63) - 1)]
    )

    [offline] = route_from_wire(message).offline

    assert offline.since.year == 9999


def broker(name: str = "broker-a", address: str = "h:1", replicas: int = 1) -> nameserver_pb2.BrokerData:
    addresses = dict.fromkeys(range(replicas), address)
    return nameserver_pb2.BrokerData(cluster="default", broker_name=name, addresses=addresses)


def queues(name: str = "broker-a", number: int = 1) -> nameserver_pb2.QueueData:
    return nameserver_pb2.QueueData(broker_name=name, read_queues=number, write_queues=number, permission=6)


@for_each(
    ("what", "fields"),
    [
        ("queues has 1001 items", {"queues": [queues(f"b-{number}") for number in range(1001)]}),
        ("brokers has 1001 items", {"brokers": [broker(f"b-{number}") for number in range(1001)]}),
        ("offline has 1001 items", {"offline": [nameserver_pb2.OfflineBroker(broker=broker())] * 1001}),
        ("132096 queues", {"queues": [queues(f"b-{number}", MAX_QUEUES) for number in range(129)]}),
        ("names a broker twice", {"queues": [queues(), queues()]}),
        ("broker name", {"queues": [queues("")]}),
        ("broker_name has 1000 characters", {"brokers": [broker("b" * 1000)]}),
        ("addresses has 129 entries", {"brokers": [broker(replicas=129)]}),
        ("not an address", {"brokers": [broker(address="nowhere")]}),
        (r"addresses\[0\] has 1000000", {"brokers": [broker(address="h" * 1_000_000)]}),
        ("topic has 1000000 characters", {"topic": "t" * 1_000_000}),
    ],
)
def test_a_route_that_no_cluster_has_is_rejected(what: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=what):
        route_from_wire(nameserver_pb2.TopicRoute(**{"topic": "t", **fields}))


def test_a_long_error_text_is_cut() -> None:
    message = to_failure(InvalidArgument("begin" + "x" * 10_000 + "end")).message
    assert len(message) <= 2_000
    assert message.startswith("begin")
    assert message.endswith("end")
