"""Consumer groups as tests of `Admin` need them: begun, filled, looked at."""

from __future__ import annotations

from minimq import Admin, Message, MessageQueue, Producer, PullConsumer
from minimq.admin.group_descriptions import GroupDescription
from support.waiting import wait_until

TIMEOUT_S = 40.0


def fill(producer: Producer, queues: list[MessageQueue], count: int) -> None:
    """Send as many messages to each of these queues."""
    for queue in queues:
        producer.send_many([Message(queue.topic, b"%d" % number) for number in range(count)], queue=queue)


def start(nameserver: str, group: str, topic: str) -> None:
    """Let a group begin at the start of a topic, and end again without having read anything."""
    with PullConsumer(nameserver, group=group, auto_commit=False) as consumer, Admin(nameserver) as admin:
        consumer.subscribe(topic)
        consumer.poll(0.1)
        brokers = {data.broker_name for data in admin.route(topic).queues}
        wait_until(lambda: {queue.broker_name for queue in consumer.assignment} == brokers, TIMEOUT_S)
    wait_until(lambda: not members_of(nameserver, group), TIMEOUT_S, what="the last member to be gone")


def members_of(nameserver: str, group: str) -> list[str]:
    with Admin(nameserver) as admin:
        return [member.client_id for member in admin.describe_group(group).members]


def committed(found: GroupDescription) -> dict[MessageQueue, int | None]:
    return {item.queue: item.committed_offset for item in found.queues}
