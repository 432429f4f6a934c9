"""minimq for asyncio: the same names, with `async`.

    from minimq.aio import Producer

    async with Producer("127.0.0.1:9876") as producer:
        receipt = await producer.send(Message("orders", b"espresso"))

Nothing here blocks the event loop, and there is no second implementation: these are faces of the classes that those of
`minimq` have too. A producer has threads that do its work; a pull consumer reads on the loop itself.
"""

from minimq.aio.admin import Admin
from minimq.aio.consumers import PullConsumer, PushConsumer, SimpleConsumer
from minimq.aio.producer import Producer
from minimq.aio.transactional_producer import TransactionalProducer
from minimq.connection.cluster import Cluster

__all__ = ["Admin", "Cluster", "Producer", "PullConsumer", "PushConsumer", "SimpleConsumer", "TransactionalProducer"]
