"""The master of a broker by the route of a topic."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from minimq.connection.client import ClusterClient
from minimq.connection.loop_calls import LoopStep
from minimq_common.errors import MinimqError, Unavailable


class RoutedMaster(NamedTuple):
    """The master of a broker by the route of a topic; refreshes the route after errors that call for it."""

    client: ClusterClient
    topic: str
    broker_name: str

    async def find(self, limit_s: float) -> str:
        """See `Master.find`. Awaitable on any thread or event loop. Also raises as `RouteCache.find`."""
        routes, limit_s = self.client.routes, min(limit_s, self.client.timeout_s)
        find = partial(routes.find, self.topic, limit_s)
        route = routes.known(self.topic) or await LoopStep(self.client, find)
        address = route.master_of(self.broker_name)
        if address is None:
            raise Unavailable(f"no name server knows a master of broker {self.broker_name} now")
        return address

    def failed(self, address: str, error: MinimqError) -> None:
        """Report the failure to `BrokerHealth`, and refresh the route if the error calls for it."""
        if address:
            self.client.connection.health.failed(address, error)
        if error.refresh_route:
            self.client.routes.refresh_soon(self.topic)
