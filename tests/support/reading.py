"""Looking at what is stored, past all groups."""

from __future__ import annotations

import time
from collections.abc import Iterable

from minimq import Admin, LocalCluster, MessageQueue, PullConsumer, ReceivedMessage
from minimq_broker.backup.check import check_directory
from minimq_common.security.credentials import CredentialsArgument

_TIMEOUT_S = 60.0


def read_queue(nameserver: str, queue: MessageQueue) -> list[ReceivedMessage]:
    """Return all messages of a queue, in its order."""
    return _read(nameserver, [queue])


def read_all(nameserver: str, topic: str, credentials: CredentialsArgument | None = None) -> list[ReceivedMessage]:
    """Return all messages of a topic; those of each queue in its order."""
    with Admin(nameserver, credentials=credentials) as admin:
        queues = admin.route(topic).read_queues()
    return _read(nameserver, queues, credentials)


def _read(
    nameserver: str, queues: Iterable[MessageQueue], credentials: CredentialsArgument | None = None
) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    deadline = time.monotonic() + _TIMEOUT_S
    with PullConsumer(nameserver, group="reading-for-a-test", auto_commit=False, credentials=credentials) as consumer:
        consumer.assign(queues)
        while not consumer.at_end():
            found += consumer.poll(0.05)
            assert time.monotonic() < deadline, f"{len(found)} messages read, the end is not reached"
    next_offset: dict[MessageQueue, int] = {}
    for message in found:
        assert message.queue_offset == next_offset.get(message.queue, 0), f"{message} is not the next one"
        next_offset[message.queue] = message.queue_offset + 1
    return found


def check_brokers(cluster: LocalCluster) -> None:
    """Verify the stores of a cluster that has ended."""
    for broker in cluster.brokers:
        assert check_directory(broker.data_dir).findings == [], broker
