"""Clients that were closed leave nothing: no thread, no open file, no event loop, no object."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from minimq import (
    Admin,
    Cluster,
    ConsumeResult,
    LocalCluster,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionalProducer,
    TransactionResolution,
    WorkQueueConsumer,
    aio,
)
from minimq.errors import Closed
from support.chance import rounds
from support.waiting import wait_until

#: 100, and 1,000 in `make test-long`.
ROUNDS = 50 * rounds(2)
#: Caches of Python, of libraries and of ours have what they need by then.
WARM_UP_ROUNDS = 30
#: What may come and go by chance.
MAX_FILES, MAX_LOOPS, MAX_OBJECTS = 2, 3, 500
MAX_MEMORY_KB = 20_000

pytestmark = [pytest.mark.rounds, pytest.mark.timeout(200 + ROUNDS)]

Use = Callable[[str, str], object]


def use_producer(nameserver: str, topic: str) -> None:
    with Producer(nameserver) as producer:
        producer.send(Message(topic, b"x"))


def use_pull_consumer(nameserver: str, topic: str) -> None:
    with PullConsumer(nameserver, group=topic) as consumer:
        consumer.subscribe(topic)
        consumer.poll(0.0)


def use_push_consumer(nameserver: str, topic: str) -> None:
    with PushConsumer(nameserver, group=topic) as consumer:
        consumer.subscribe(topic)
        consumer.start(lambda _: ConsumeResult.SUCCESS)


def use_work_queue_consumer(nameserver: str, topic: str) -> None:
    with WorkQueueConsumer(nameserver, group=f"{topic}-work") as consumer:
        consumer.subscribe(topic)
        consumer.receive(1, timeout=0.0)


def use_transactional_producer(nameserver: str, topic: str) -> None:
    with (
        TransactionalProducer(nameserver, group=topic, check=lambda _: TransactionResolution.COMMIT) as producer,
        producer.transaction() as transaction,
    ):
        transaction.send(Message(topic, b"x"))


def use_shared_cluster(nameserver: str, topic: str) -> None:
    with Cluster(nameserver) as cluster, Admin(cluster) as admin:
        admin.describe_topic(topic)


def use_in_asyncio(nameserver: str, topic: str) -> None:
    async def use() -> None:
        async with aio.Producer(nameserver) as producer, aio.PullConsumer(nameserver, group=topic) as consumer:
            await producer.send(Message(topic, b"x"))
            consumer.subscribe(topic)
            await consumer.poll(0.0)

    asyncio.run(use())


def close_during_a_call(nameserver: str, topic: str) -> None:
    admin = Admin(nameserver)
    calls = [threading.Thread(target=_describe, args=(admin, topic)) for _ in range(2)]
    for call in calls:
        call.start()
    wait_until(lambda: admin._client.under_way or not any(call.is_alive() for call in calls))
    admin.close()
    for call in calls:
        call.join()


def _describe(admin: Admin, topic: str) -> None:
    with suppress(Closed):
        admin.describe_topic(topic)


USES: list[Use] = [
    use_producer,
    use_pull_consumer,
    use_push_consumer,
    use_work_queue_consumer,
    use_transactional_producer,
    use_shared_cluster,
    use_in_asyncio,
    close_during_a_call,
]


def memory_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def left() -> tuple[int, int, int, int, int]:
    """Return the number of threads, open files, closed event loops and objects, and the memory in KiB."""
    gc.collect()
    objects = gc.get_objects()
    loops = sum(isinstance(each, asyncio.AbstractEventLoop) and each.is_closed() for each in objects)
    return threading.active_count(), len([*Path("/proc/self/fd").iterdir()]), loops, len(objects), memory_kb()


@pytest.mark.parametrize("use", USES)
def test_closed_clients_leave_nothing(cluster: LocalCluster, topic: str, use: Use) -> None:
    for _ in range(WARM_UP_ROUNDS):
        use(cluster.nameserver, topic)
    threads, files, loops, objects, memory = left()
    for _ in range(ROUNDS):
        use(cluster.nameserver, topic)
    most = threads, files + MAX_FILES, loops + MAX_LOOPS, objects + MAX_OBJECTS, memory + MAX_MEMORY_KB
    # gRPC closes sockets on threads of its own.
    wait_until(lambda: all(now <= limit for now, limit in zip(left(), most, strict=True)), what=f"at most {most}")
