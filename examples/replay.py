"""Read everything since yesterday again: without affecting the group, or as the group itself.

python examples/replay.py
"""

from __future__ import annotations

from contextlib import closing

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq.connectors import RangeReader


def since_yesterday(nameserver: str, topic: str) -> list[bytes]:
    """Return all bodies of the last 24 hours. Does not affect any group."""
    with Admin(nameserver) as admin, closing(RangeReader(nameserver)) as reader:
        ends = {each.queue: each.max_offset for each in admin.describe_topic(topic).queues}
        begins = admin.offsets_at(ends, "-24h")
        return [
            message.body
            for queue, begin in begins.items()
            for batch in reader.read(queue, begin, ends[queue])
            for message in batch.messages(begin)
        ]


def read(nameserver: str, group: str, count: int) -> int:
    """Read `count` messages as a group; return how many were read."""
    with PullConsumer(nameserver, group=group) as consumer:
        consumer.subscribe("orders")
        found = 0
        while found < count:
            found += len(consumer.poll(timeout=5))
        return found


def run(nameserver: str) -> tuple[int, int, int]:
    """Return the numbers of messages read by a group, by a reader without a group, and by the group after a reset."""
    with Admin(nameserver) as admin:
        admin.create_topic("orders", queues=4)
    with Producer(nameserver) as producer:
        producer.send_many(Message("orders", b"order %d" % number) for number in range(1000))
    first = read(nameserver, "billing", 1000)
    beside = len(since_yesterday(nameserver, "orders"))
    with Admin(nameserver) as admin:
        admin.reset_offset("billing", "orders", "-24h")  # running members continue from there, too
    return first, beside, read(nameserver, "billing", 1000)


if __name__ == "__main__":
    with LocalCluster(brokers=1) as cluster:
        print("read {}, beside the group {}, once more {}".format(*run(cluster.nameserver)))
