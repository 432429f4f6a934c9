"""A broker that does nothing but register, and what name servers know of such."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from minimq_broker.registration import Registration
from minimq_common.model import BrokerData, TopicRoute
from minimq_common.wire import rpc
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc
from support.loop_thread import LoopThread
from support.nameserver_client import NameServerClient
from support.waiting import wait_until

_ANSWER_S = 5.0
_RUNS = itertools.count(1)


class FakeBroker:
    """A broker that does nothing but register."""

    def __init__(
        self,
        loop: LoopThread,
        *nameservers: str,
        name: str = "broker-a",
        broker_id: int = 0,
        address: str = "",
        timeout_s: float = 2,
    ) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self.request = nameserver_pb2.RegisterRequest(
            cluster="default",
            broker_name=name,
            broker_id=broker_id,
            replica_id=broker_id,
            run=next(_RUNS),
            address=address or f"{name}-{broker_id}:10911",
            permission=6,
        )
        self.join(*nameservers)

    def join(self, *nameservers: str) -> None:
        """Begin to register; to be called again only when it was made without name servers."""
        self.registration = self._loop.call(
            lambda: Registration(
                nameservers,
                self.describe,
                lambda: self.request.data_version,
                self._place(),
                heartbeat_s=0.1,
                timeout_s=self._timeout_s,
            )
        )
        self._loop.call(self.registration.start)

    def _place(self) -> nameserver_pb2.RegisterRequest:
        own = self.request
        return nameserver_pb2.RegisterRequest(
            check_only=True, broker_name=own.broker_name, replica_id=own.replica_id, address=own.address, run=own.run
        )

    def tell(self, broker_id: int | None = None, permission: int | None = None) -> None:
        """Change the id or the permission of the broker, and register anew with a higher version."""
        if broker_id is not None:
            self.request.broker_id = broker_id
        if permission is not None:
            self.request.permission = permission
        self.request.data_version += 1
        self._loop.call(self.registration.changed)

    def describe(self) -> nameserver_pb2.RegisterRequest:
        copy = nameserver_pb2.RegisterRequest()
        copy.CopyFrom(self.request)
        return copy

    def carry(self, *topics: str) -> None:
        """Replace the topics, and wait until the connected name servers show those of a master."""
        del self.request.groups[:]
        self.request.groups.add(topics=topics, read_queues=4, write_queues=4, permission=6)
        self.request.data_version += 1
        self._loop.call(self.registration.changed)
        if not self.request.broker_id:
            for address in self.registration.connected:
                wait_until(lambda address=address: self.carried(address) == set(topics))  # type: ignore[misc]

    def carried(self, nameserver: str) -> set[str]:
        """Return the topics that routes of a name server find here."""
        with rpc.open_channel(nameserver) as channel:
            stub = nameserver_pb2_grpc.NameServerStub(channel)
            routes = stub.GetRoutes(nameserver_pb2.GetRoutesRequest()).routes
        return {
            route.topic for route in routes for queues in route.queues if queues.broker_name == self.request.broker_name
        }

    def connected_to(self, *addresses: str) -> bool:
        return set(self.registration.connected) == set(addresses)

    def stop(self) -> None:
        self._loop.run(self.registration.stop())


@contextmanager
def alone(nameserver: str, *, name: str, broker_id: int = 0, address: str = "") -> Iterator[FakeBroker]:
    """Give a test without a loop of its own a broker that is registered with one name server."""
    loop = LoopThread()
    try:
        broker = FakeBroker(loop, nameserver, name=name, broker_id=broker_id, address=address)
        try:
            wait_until(lambda: broker.connected_to(nameserver))
            yield broker
        finally:
            broker.stop()
    finally:
        loop.close()


def registered(nameserver: str) -> list[BrokerData]:
    """Return the brokers that a name server knows now."""
    link = NameServerClient(nameserver)
    try:
        return link.brokers()
    finally:
        link.close()


def brokers_of(route: TopicRoute) -> list[str]:
    """Return the names of the brokers that carry a topic."""
    return [data.broker_name for data in route.queues]
