"""A name server that answers what cannot be: clients ask the next one, and none of them hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from minimq import LocalCluster, Message, Producer, PullConsumer
from minimq_common.errors import MinimqError, Unavailable
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc
from support.open_routes import OpenRoutes

Falsify = Callable[[nameserver_pb2.TopicRoute], None]


class FalseNameServer(nameserver_pb2_grpc.NameServerServicer):
    """Tells of every topic what a test has thought of."""

    def __init__(self, falsify: Falsify) -> None:
        self._falsify = falsify
        self.asked = 0

    def GetRoutes(self, request: nameserver_pb2.GetRoutesRequest, context: Any) -> nameserver_pb2.GetRoutesResponse:
        self.asked += 1
        return nameserver_pb2.GetRoutesResponse(routes=[self._route(request.topic)])

    def WatchRoutes(self, requests: Iterator[Any], context: Any) -> Iterator[nameserver_pb2.RouteEvent]:
        for request in requests:
            self.asked += 1
            for topic in request.topics:
                yield nameserver_pb2.RouteEvent(route=self._route(topic))

    def _route(self, topic: str) -> nameserver_pb2.TopicRoute:
        route = nameserver_pb2.TopicRoute(topic=topic)
        route.brokers.add(cluster="default", broker_name="broker-a", addresses={0: "127.0.0.1:9"})
        route.queues.add(broker_name="broker-a", read_queues=4, write_queues=4, permission=6)
        self._falsify(route)
        return route


def million_queues(route: nameserver_pb2.TopicRoute) -> None:
    route.queues[0].read_queues = route.queues[0].write_queues = (1 << 31) - 1


def many_brokers(route: nameserver_pb2.TopicRoute) -> None:
    for number in range(20_000):
        route.queues.add(broker_name=f"b-{number}", read_queues=1024, write_queues=1024, permission=6)


def many_addresses(route: nameserver_pb2.TopicRoute) -> None:
    for number in range(20_000):
        route.brokers[0].addresses[number] = "127.0.0.1:9"


def long_names(route: nameserver_pb2.TopicRoute) -> None:
    route.queues[0].broker_name = route.brokers[0].broker_name = "b" * 1_000_000


def no_address(route: nameserver_pb2.TopicRoute) -> None:
    route.brokers[0].addresses[0] = "unix:/etc/passwd"


def another_topic(route: nameserver_pb2.TopicRoute) -> None:
    route.topic = "another"


def twice(route: nameserver_pb2.TopicRoute) -> None:
    route.queues.add().CopyFrom(route.queues[0])


FALSE = [million_queues, many_brokers, many_addresses, long_names, no_address, another_topic, twice]


@pytest.fixture
def pretend(request: pytest.FixtureRequest) -> Iterator[Callable[[Falsify], tuple[FalseNameServer, str]]]:
    servers: list[grpc.Server] = []

    def start(falsify: Falsify) -> tuple[FalseNameServer, str]:
        server = grpc.server(ThreadPoolExecutor(4))
        servicer = FalseNameServer(falsify)  # type: ignore[abstract]  # the calls that matter
        nameserver_pb2_grpc.add_NameServerServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return servicer, f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None)


@pytest.mark.parametrize("falsify", FALSE)
def test_a_client_asks_the_next_one(
    cluster: LocalCluster, topic: str, pretend: Callable[[Falsify], tuple[FalseNameServer, str]], falsify: Falsify
) -> None:
    false, address = pretend(falsify)
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"first"))
    cache = OpenRoutes([address, cluster.nameserver], timeout_s=20)
    cache.nameservers.preferred = address
    try:
        assert set(cache.route(topic).brokers) <= {broker.name for broker in cluster.brokers}
        assert false.asked
        assert cache.nameservers.preferred == cluster.nameserver
    finally:
        cache.close()


@pytest.mark.parametrize("falsify", [million_queues, no_address, twice])
def test_alone_it_is_as_good_as_none(
    topic: str, pretend: Callable[[Falsify], tuple[FalseNameServer, str]], falsify: Falsify
) -> None:
    _, address = pretend(falsify)
    cache = OpenRoutes([address], timeout_s=5)
    try:
        with pytest.raises(Unavailable, match="its answer is invalid"):
            cache.route(topic)
    finally:
        cache.close()
    began = time.monotonic()
    with Producer(address, send_timeout_s=1) as producer, pytest.raises(MinimqError):
        producer.send(Message(topic, b"body"))
    with PullConsumer(address, group="audit") as consumer:
        consumer.subscribe(topic)
        assert consumer.poll(0.2) == []
    assert time.monotonic() - began < 60  # it does not hang
