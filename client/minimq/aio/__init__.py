"""minimq for asyncio: the same names, with `async`.

    from minimq.aio import Producer

    async with Producer("127.0.0.1:9876") as producer:
        receipt = await producer.send(Message("orders", b"espresso"))

Nothing here blocks the event loop. These classes share their implementation with those of `minimq`. A producer works on
threads of its own; a pull consumer reads on the user's loop.
"""

from minimq.aio.admin import Admin
from minimq.aio.consumers import PullConsumer, PushConsumer, WorkQueueConsumer
from minimq.aio.producer import Producer
from minimq.connection.cluster import Cluster
from minimq.features.half_messages.aio_producer import TransactionalProducer

__all__ = ["Admin", "Cluster", "Producer", "PullConsumer", "PushConsumer", "TransactionalProducer", "WorkQueueConsumer"]
