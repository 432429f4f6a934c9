"""Producers whose batches together are more than a broker takes in at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from minimq import Admin, LocalCluster, Message, Producer

PATIENCE_S = 60.0


def test_producers_of_batches_that_do_not_fit_at_once_are_all_served() -> None:
    """Some are disconnected while those of others come in, and send again."""
    messages, size = 6, 2 << 20
    options = {"max_incoming_bytes": 64 << 20}
    with (
        LocalCluster(brokers=1, broker_options=options) as cluster,
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
