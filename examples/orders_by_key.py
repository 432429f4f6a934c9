"""Keeps the events of each order in sequence: they are sent by key, and processed by two concurrent workers.

python examples/orders_by_key.py
"""

from __future__ import annotations

import threading
from collections import defaultdict

from minimq import Admin, ConsumeResult, LocalCluster, Message, Producer, PushConsumer, ReceivedMessage, by_hash

STEPS = ["created", "paid", "packed", "sent"]
ORDERS = 25


def run(nameserver: str) -> dict[str, list[str]]:
    """Send the steps of all orders, interleaved; return the steps of each order as they were processed."""
    with Admin(nameserver) as admin:
        admin.create_topic("orders", queues=4)
    with Producer(nameserver) as producer:
        producer.send_many(
            (Message("orders", step.encode(), keys=[f"o-{number}"]) for step in STEPS for number in range(ORDERS)),
            selector=by_hash(),  # all messages with the same key go to the same queue
        )
    seen: defaultdict[str, list[str]] = defaultdict(list)
    left = threading.Semaphore(0)

    def work(messages: list[ReceivedMessage]) -> ConsumeResult:
        for message in messages:
            seen[message.keys[0]].append(message.body.decode())
            left.release()
        return ConsumeResult.SUCCESS

    # A queue has one worker at a time, and with orderly=True one call at a time: no message overtakes one that failed.
    workers = [PushConsumer(nameserver, group="warehouse", orderly=True) for _ in range(2)]
    for worker in workers:
        worker.subscribe("orders")
        worker.start(work)
    for _ in range(ORDERS * len(STEPS)):
        left.acquire()
    for worker in workers:
        worker.close()
    return seen


if __name__ == "__main__":
    with LocalCluster(brokers=1) as cluster:
        done = run(cluster.nameserver)
    print(f"{len(done)} orders, in order: {all(steps == STEPS for steps in done.values())}")
