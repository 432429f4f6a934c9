"""The routes of a client, with a look inside."""

from __future__ import annotations

from collections.abc import Sequence

from minimq.connection.client import ClusterClient, RouteCache
from minimq.connection.cluster import Cluster
from minimq.connection.connection import Connection


class OpenRoutes(RouteCache):
    """The routes of a client that has a connection of its own.

    Args:
        addresses: of the name servers.
        timeout_s: seconds that a question may take.
        poll_s: seconds after which the watch begins anew.
    """

    def __init__(self, addresses: Sequence[str], *, timeout_s: float = 30, poll_s: float = 30) -> None:
        cluster = Cluster(addresses).leave_to_client()
        cluster.connection = self.connection = Connection(addresses, poll_s=poll_s)
        self.client = ClusterClient(cluster, timeout_s)
        self.nameservers = self.client.nameservers
        self.routes = self.connection.routes
        self.table = self.routes
        super().__init__(self.client, self.connection)

    def close(self) -> None:
        super().close()
        self.client.close()
        self.connection.close()
