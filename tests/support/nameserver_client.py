"""Blocking calls to name servers."""

from __future__ import annotations

from collections.abc import Callable

from minimq.admin import name_server_queries
from minimq.connection.client import ClusterClient
from minimq.connection.offline_brokers import ClusterView, view_from_wire
from minimq_common.model import BrokerData, OfflineBroker, TopicRoute
from minimq_proto.v1 import nameserver_pb2


class NameServerClient:
    """Asks name servers, as an `Admin` does."""

    def __init__(self, *addresses: str, timeout_s: float = 30.0) -> None:
        self._client = ClusterClient(addresses, timeout_s)
        self._servers = self._client.nameservers
        self._timeout_s = timeout_s

    def route(self, topic: str) -> TopicRoute:
        return self._client.wait(lambda: self._servers.route(topic, self._timeout_s))

    def topics(self) -> list[TopicRoute]:
        return self._client.wait(lambda: self._servers.topics(self._timeout_s))

    def topic_names(self) -> list[str]:
        return self._client.wait(lambda: self._servers.topic_names(self._timeout_s))

    def brokers(self) -> list[BrokerData]:
        return self._client.wait(lambda: self._servers.cluster(self._timeout_s))

    def offline(self) -> list[OfflineBroker]:
        return self._client.wait(lambda: name_server_queries.offline(self._servers))

    def forget(self, broker_name: str) -> bool:
        return self._client.wait(lambda: name_server_queries.forget(self._servers, broker_name, self._timeout_s))

    def conflicts(self) -> list[name_server_queries.ConflictReport]:
        return self._client.wait(lambda: name_server_queries.conflicts(self._servers))

    def view(self) -> ClusterView:
        request = nameserver_pb2.GetClusterRequest()
        return self._client.wait(
            lambda: self._servers.ask(lambda stub: stub.GetCluster, request, view_from_wire, self._timeout_s)
        )

    def wait_until_shown(self, lack: Callable[[ClusterView], str | None], timeout_s: float) -> None:
        self._client.wait(lambda: name_server_queries.wait_until_shown(self._servers, lack, timeout_s))

    def close(self) -> None:
        self._client.close()
