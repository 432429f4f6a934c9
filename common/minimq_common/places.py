"""The values that errors have: a queue, and a broker that has gone. Import them from `model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One ordered queue of a topic, on one broker."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"


@dataclass(frozen=True, slots=True)
class OfflineBroker:
    """A broker that has gone, as remembered by a name server. Its queues cannot be used.

    Attributes:
        cluster: cluster of the broker.
        broker_name: name of the broker.
        addresses: last known addresses (HOST:PORT) of its replicas, by broker id.
        since: when it went, in UTC.
        stopped: whether it was stopped; if not, its connection was lost.
        queues: number of its readable queues, in the requested topic or, without one, in all topics.
        write_queues: the same for its writable queues.
        lacks_topics: whether it is registered again, without these queues, as after the loss of its disk.
    """

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]
    since: datetime
    stopped: bool
    queues: int
    write_queues: int = 0
    lacks_topics: bool = False
