"""The connection of a broker: one cluster, the producer on it, and what it asks the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from minimq import Admin, Cluster, SendInterceptor, errors
from minimq.aio import Producer


class MinimqConnection:
    """The clients that all subscribers and publishers of a broker share.

    Args:
        cluster: the connection to the cluster, which this closes.
        create_queues: number of queues of a topic that is created because it is missing; 0 creates none.
        interceptors: of the producer.

    Attributes:
        cluster: for further clients.
        producer: sends and asks.
    """

    def __init__(self, cluster: Cluster, create_queues: int, interceptors: Sequence[SendInterceptor] = ()) -> None:
        self.cluster, self.create_queues = cluster, create_queues
        self.producer = Producer(cluster, interceptors=interceptors)

    def create_topic(self, topic: str) -> None:
        """Create a topic unless it exists. Blocks; raises as `minimq.Admin.create_topic`."""
        with Admin(self.cluster) as admin:
            admin.create_topic(topic, self.create_queues, if_not_exists=True)

    def ping(self, timeout_s: float) -> bool:
        """Tell whether a name server answers and knows a broker. Blocks."""
        try:
            with Admin(self.cluster, timeout_s=timeout_s) as admin:
                return bool(admin.cluster())
        except errors.MiniMQError:
            return False

    async def close(self) -> None:
        """Send what is buffered, and end all connections. Raises as `minimq.aio.Producer.close`."""
        try:
            await self.producer.close()
        finally:
            await self.cluster.aclose()
