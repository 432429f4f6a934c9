"""Connections to single name servers, for those who need the view of each one and not just of any."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc

from minimq_common.errors import Closed, DeadlineExceeded, SystemBusy, TopicNotFound, TransportError
from minimq_common.model import BrokerData, TopicRoute
from minimq_common.rpc import from_rpc_error, open_channel
from minimq_common.wire import broker_from_wire, route_from_wire
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc

Request = TypeVar("Request")
Response = TypeVar("Response")

_NO_QUEUES = TopicRoute("", (), {})

#: Time between two looks at a name server that does not show yet what is waited for.
_LOOK_AGAIN_S = 0.01
#: One that does not answer within this time is not waited for.
_ANSWER_S = 1.0


class NameServerLink:
    """The connection to one name server. Thread-safe.

    Attributes:
        address: HOST:PORT.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = open_channel(address)
        self._stub = nameserver_pb2_grpc.NameServerStub(self._channel)

    def route(self, topic: str, timeout_s: float) -> TopicRoute:
        """Return the route as this name server has it now.

        Raises:
            TopicNotFound: it knows no broker that carries the topic.
            SystemBusy: it has just started and does not know yet.
            TransportError: it does not answer.
        """
        answer = self._call(self._stub.GetRoute, nameserver_pb2.GetRouteRequest(topic=topic), timeout_s)
        return route_from_wire(answer.route)

    def brokers(self, timeout_s: float) -> list[BrokerData]:
        """Return the brokers that are registered with this name server. Raises `TransportError`."""
        answer = self._call(self._stub.GetCluster, nameserver_pb2.GetClusterRequest(), timeout_s)
        return [broker_from_wire(broker) for broker in answer.brokers]

    def close(self) -> None:
        """End the connection; later calls raise `Closed`."""
        self._channel.close()

    def _call(self, method: Callable[..., Response], request: Request, timeout_s: float) -> Response:
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"name server {self.address}") from None
        except ValueError:  # what gRPC raises for a closed channel
            raise Closed("the client is closed") from None


class NameServerLinks:
    """Connections to all name servers. Thread-safe."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._links = tuple(NameServerLink(address) for address in dict.fromkeys(addresses))
        self._closed = threading.Event()

    def brokers(self) -> list[BrokerData]:
        """Return what the name servers that answer know together, sorted by broker name; empty when none answers."""
        known: dict[str, BrokerData] = {}
        for link in self._links:
            try:
                answer = link.brokers(_ANSWER_S)
            except TransportError:
                continue
            for broker in answer:
                other = known.get(broker.broker_name)
                addresses = {**broker.addresses, **(other.addresses if other else {})}
                known[broker.broker_name] = BrokerData(
                    broker.cluster, broker.broker_name, dict(sorted(addresses.items()))
                )
        return [known[name] for name in sorted(known)]

    def wait_for_route(self, topic: str, missing: Callable[[TopicRoute], str | None], timeout_s: float) -> None:
        """Wait until the route of a topic is as wanted at every name server that answers.

        Args:
            topic: its name.
            missing: takes a route, one without queues when there is none, and says what is still missing.
            timeout_s: seconds for all of them together.

        Raises:
            DeadlineExceeded: the text names the name server and what it does not show.
        """
        deadline = time.monotonic() + timeout_s
        for link in self._links:
            while (lack := _lack_of(link, topic, missing)) is not None:
                if time.monotonic() >= deadline:
                    raise DeadlineExceeded(
                        f"the brokers have done it, but name server {link.address} lags {timeout_s} s behind: {lack}"
                    )
                if self._closed.wait(_LOOK_AGAIN_S):
                    raise Closed("the client is closed")

    def close(self) -> None:
        """End all connections and all waiting. Idempotent."""
        self._closed.set()
        for link in self._links:
            link.close()


def _lack_of(link: NameServerLink, topic: str, missing: Callable[[TopicRoute], str | None]) -> str | None:
    """Return what one name server does not show yet; None also when it does not answer."""
    try:
        return missing(link.route(topic, _ANSWER_S))
    except TopicNotFound:
        return missing(_NO_QUEUES)
    except SystemBusy as busy:
        return busy.message
    except TransportError:
        return None
