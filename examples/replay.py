"""Read everything since yesterday again: without affecting the group, or as the group itself.

python examples/replay.py
"""

from __future__ import annotations

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer


def since_yesterday(nameserver: str, topic: str) -> list[bytes]:
    """Return all bodies of the last 24 hours. A consumer without a group affects none."""
    bodies: list[bytes] = []
    with Admin(nameserver) as admin, PullConsumer(nameserver, start="-24h") as consumer:
        consumer.assign(admin.route(topic).queues)
        while not consumer.at_end():
            bodies += [message.body for message in consumer.poll()]
    return bodies


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
