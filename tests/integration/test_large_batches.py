"""Producers of batches that are as large as a broker takes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from minimq import Admin, LocalCluster, Message, Producer

PATIENCE_S = 60.0


def test_producers_of_large_batches_are_all_served() -> None:
    messages, size = 4, 1 << 20
    with (
        LocalCluster(brokers=1) as cluster,
        ExitStack() as stack,
        ThreadPoolExecutor(8) as pool,
    ):
        admin = stack.enter_context(Admin(cluster.nameserver))
        admin.create_topic("large", queues=8)
        producers = [
            stack.enter_context(Producer(cluster.nameserver, batch_bytes=messages * size, send_timeout_s=PATIENCE_S))
            for _ in range(8)
        ]
        batch = [Message("large", bytes(size))] * messages
        sent = list(pool.map(lambda producer: producer.send_many(batch), producers))
        assert [len(receipts) for receipts in sent] == [messages] * 8
        assert admin.describe_topic("large").messages == messages * 8
