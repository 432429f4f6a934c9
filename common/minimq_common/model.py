"""The values that every role shares: messages, queues and routes.

Messages and what answers them are made by the million, so they are `msgspec` structs without cyclic garbage
collection; a message is checked when its batch is built, many at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from types import MappingProxyType

import msgspec

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})

#: Broker id of a master; slaves have larger ids.
MASTER_ID = 0


class Permission(IntFlag):
    """What may be done with the queues of a topic."""

    NONE = 0
    WRITE = 2
    READ = 4
    READ_WRITE = 6


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue of a topic: ordered, and carried by one broker (name)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id}"


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to send.

    Attributes:
        topic: where it goes.
        body: the payload, 1 byte to 4 MiB unless the broker is told otherwise.
        tag: one label that consumers may filter by.
        keys: identifiers by which people look for the message; none may contain a NUL character.
        properties: further names and values, both text.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues of a topic one broker carries, and what may be done with them."""

    broker_name: str
    read_queues: int
    write_queues: int
    permission: Permission


@dataclass(frozen=True, slots=True)
class BrokerData:
    """Where the replicas of one broker name are reached: broker id to HOST:PORT."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        """Address of the master, if one is known."""
        return self.addresses.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Everything a client needs to find the queues of one topic."""

    topic: str
    queues: tuple[QueueData, ...]
    brokers: Mapping[str, BrokerData]

    def write_queues(self) -> list[MessageQueue]:
        """All queues that take messages now: writable, and their broker has a master. Sorted."""
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queues
            if data.permission & Permission.WRITE and self.master_of(data.broker_name) is not None
            for queue_id in range(data.write_queues)
        ]

    def read_queues(self) -> list[MessageQueue]:
        """All queues that can be read. Sorted."""
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queues
            if data.permission & Permission.READ
            for queue_id in range(data.read_queues)
        ]

    def master_of(self, broker_name: str) -> str | None:
        """Address of the master of a broker name, if one is known."""
        broker = self.brokers.get(broker_name)
        return broker.master if broker else None
