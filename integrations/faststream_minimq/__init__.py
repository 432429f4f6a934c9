"""A broker for FastStream: handlers, publishers and requests on a minimq cluster.

broker = MinimqBroker("127.0.0.1:9876", group="orders-service")
app = FastStream(broker)

@broker.subscriber("orders")
async def handle(order: Order) -> None: ...
"""

from faststream_minimq.annotations import MinimqMessage
from faststream_minimq.broker import MinimqBroker
from faststream_minimq.response import MinimqResponse
from faststream_minimq.router import MinimqPublisher, MinimqRoute, MinimqRouter
from faststream_minimq.testing import TestMinimqBroker

__all__ = [
    "MinimqBroker",
    "MinimqMessage",
    "MinimqPublisher",
    "MinimqResponse",
    "MinimqRoute",
    "MinimqRouter",
    "TestMinimqBroker",
]
