"""minimq for asyncio: the same names, with `async`.

    from minimq.aio import Producer

    async with Producer("127.0.0.1:9876") as producer:
        receipt = await producer.send(Message("orders", b"espresso"))

These are faces of the classes in `minimq`, which do the work on threads of their own: nothing here blocks the event
loop, and there is no second implementation.
"""

from minimq.aio.producer import Producer
from minimq.aio.pull_consumer import PullConsumer
from minimq.aio.push_consumer import PushConsumer
from minimq.connection.cluster import Cluster

__all__ = ["Cluster", "Producer", "PullConsumer", "PushConsumer"]
