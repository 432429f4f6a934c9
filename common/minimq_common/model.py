"""The values that every role shares: messages, queues and routes.

Messages and what answers them are made by the million, so they are `msgspec` structs without cyclic garbage
collection. What is mistaken most often is checked when a message is made, all else when its batch is built, many at a
time: each check here costs as much as ten there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntFlag
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.words import kind_of

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})

#: Broker id of a master; slaves have larger ids.
MASTER_ID = 0


class Permission(IntFlag):
    """Permissions of clients on the queues of a topic."""

    NONE = 0
    WRITE = 2
    READ = 4
    READ_WRITE = 6


#: Permissions by the names that people write.
PERMISSIONS: Mapping[str, Permission] = {
    "read-write": Permission.READ_WRITE,
    "read": Permission.READ,
    "write": Permission.WRITE,
    "none": Permission.NONE,
}


def permission_name(permission: int) -> str:
    """Return a permission as people write it: read-write, read, write or none."""
    return next((name for name, value in PERMISSIONS.items() if value == permission), "none")


class TopicId(NamedTuple):
    """Identifies one creation of a topic at one broker: a topic that is deleted and created again gets another id.

    Attributes:
        number: log position at which the broker created the topic.
        created_ms: creation time. Tells apart equal numbers of a broker that has lost its disk.
    """

    number: int
    created_ms: int


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
        body: the payload, at most 4 MiB unless the broker is told otherwise. It may be empty, but not in a compacted
            topic.
        tag: one label that consumers may filter by, of at most 255 characters. In a subscription, `||` joins tags: one
            that has it in its name is found by `where="TAGS = 'a||b'"` alone.
        keys: identifiers such as the number of an order. Selectors send messages with the same first key to the same
            queue, consumers see the keys and filter by them (`where="KEYS = 'o-17'"`), and `Admin.find_messages` finds
            them. In a compacted topic the first one is the key of which the latest message is kept. None may contain a
            NUL character.
        properties: further names and values, both text.
        message_group: for a FIFO topic: messages of one group are consumed in the order in which they were sent, one
            after the other. 1 to 64 characters.
        deliver_after_s: for a delayed message: seconds from its sending on until it is delivered, at most 366 days.
        deliver_at: or the time at which it is delivered: a `datetime` with a time zone, or seconds since 1970.
        recallable: a delayed message can be taken back until then, with `producer.recall(receipt.recall_handle)`.
        is_tombstone: it deletes its first key from a compacted topic; its body is empty. See `tombstone`.

    Raises:
        InvalidArgument: topic or body have a wrong type, or the keys are one text. All else is checked when the message
            is sent, before anything is stored.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = NO_PROPERTIES
    message_group: str | None = None
    deliver_after_s: float | None = None
    deliver_at: datetime | float | None = None
    recallable: bool = False
    is_tombstone: bool = False

    def __hash__(self) -> int:
        return hash((self.topic, self.body, self.tag))  # keys and properties need not be hashable

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a dictionary, such as `NO_PROPERTIES`, cannot be pickled.
        topic, body, tag, keys, properties, *rest = msgspec.structs.astuple(self)
        return Message, (topic, body, tag, keys, dict(properties), *rest)

    def __post_init__(self) -> None:
        if type(self.topic) is not str or type(self.body) is not bytes or type(self.keys) is str:
            _check_types(self)

    @classmethod
    def tombstone(cls, topic: str, key: str, properties: Mapping[str, str] = NO_PROPERTIES) -> Message:
        """Return the message that deletes a key from a compacted topic."""
        return cls(topic, b"", None, (key,), properties, is_tombstone=True)


def _check_types(message: Message) -> None:
    from minimq_common.batch.message_fields import wrong_field  # which needs this module

    topic: object = message.topic
    if not isinstance(topic, str):
        raise InvalidArgument(f"the topic of the message is {kind_of(topic)}: give text")
    if wrong := wrong_field([message.body], [message.tag], [message.keys], [message.properties]):
        raise InvalidArgument(wrong)


def with_property(message: Message, name: str, value: str) -> Message:
    """Return a message that has one more property."""
    return msgspec.structs.replace(message, properties={**message.properties, name: value})


#: Most queues that a topic has on one broker.
MAX_QUEUES = 1024
#: Most brokers that carry one topic, or are away with it; and most queues that they have together.
MAX_BROKERS_OF_A_TOPIC = 1_000
MAX_QUEUES_OF_A_TOPIC = 1 << 17


@dataclass(frozen=True, slots=True)
class QueueData:
    """The number of queues of a topic on one broker, and their permission.

    Attributes:
        broker_name: the broker.
        read_queues: how many consumers see.
        write_queues: how many producers see.
        permission: of clients.
        key_queues: how many queues a compacted topic has on all brokers together; 0 for any other.
        topic: its name, in the route that a client has; otherwise empty.
    """

    broker_name: str
    read_queues: int
    write_queues: int
    permission: Permission
    key_queues: int = 0
    topic: str = field(default="", compare=False)

    def readable(self, topic: str = "") -> list[MessageQueue]:
        """Return the queues that can be read; the topic has to be given if it is not known here."""
        count = self.read_queues if self.permission & Permission.READ else 0
        return [MessageQueue(topic or self.topic, self.broker_name, queue_id) for queue_id in range(count)]


@dataclass(frozen=True, slots=True)
class BrokerData:
    """Addresses of the replicas of one broker name: broker id to HOST:PORT."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        """Address of the master, if one is known."""
        return self.addresses.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class AwayBroker:
    """A broker that has gone, as a name server remembers it. Its queues cannot be used.

    Attributes:
        cluster: the cluster it belonged to.
        broker_name: its name.
        addresses: HOST:PORT at which its replicas were reached last, by broker id.
        since: when it went, in UTC.
        stopped: it was stopped; otherwise it was lost.
        queues: how many of its queues could be read: of the topic that was asked about, else of all topics.
    """

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]
    since: datetime
    stopped: bool
    queues: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Everything a client needs to find the queues of one topic.

    Attributes:
        topic: its name.
        queues: what each broker carries, sorted by broker name.
        brokers: where these brokers are, by name.
        away: brokers that carried the topic and have gone, sorted by name; they are not among the others.
    """

    topic: str
    queues: tuple[QueueData, ...]
    brokers: Mapping[str, BrokerData]
    away: tuple[AwayBroker, ...] = ()
    #: The number of queues of a compacted topic by which the queue of a key is chosen; 0 for any other topic.
    key_queues: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_queues", self.queues[0].key_queues if self.queues else 0)

    def write_queues(self) -> list[MessageQueue]:
        """All queues that take messages now: writable, and their broker has a master. Sorted."""
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self._writable()
            for queue_id in range(data.write_queues)
        ]

    def write_queue_count(self) -> int:
        """Return how many queues take messages now."""
        return sum(data.write_queues for data in self._writable())

    def read_queues(self) -> list[MessageQueue]:
        """All queues that can be read. Sorted."""
        return [queue for data in self.queues for queue in data.readable(self.topic)]

    def _writable(self) -> Iterator[QueueData]:
        for data in self.queues:
            if data.permission & Permission.WRITE and self.master_of(data.broker_name) is not None:
                yield data

    def master_of(self, broker_name: str) -> str | None:
        """Address of the master of a broker name, if one is known."""
        broker = self.brokers.get(broker_name)
        return broker.master if broker else None


class MemberList(NamedTuple):
    """The members of a group as one broker sees them."""

    client_ids: Collection[str]
    #: What each of them subscribes to; empty while that is the same for all.
    topics: Mapping[str, Collection[str]]

    def subscribers(self, topic: str) -> tuple[str, ...]:
        """Return who subscribes to a topic that somebody subscribes to, sorted."""
        return tuple(sorted(name for name in self.client_ids if not self.topics or topic in self.topics.get(name, ())))


def deciders(carriers: Mapping[str, Collection[str]], *, same_topics: bool) -> dict[str, str]:
    """Return, by topic, the broker by whose list of members its queues are divided."""
    first = {topic: min(brokers) for topic, brokers in carriers.items()}
    return dict.fromkeys(first, min(first.values(), default="")) if same_topics else first


_COUNT_BITS = 32


def first_epoch(term: int) -> int:
    """Return the epoch behind which the grants of a master are numbered."""
    return term << _COUNT_BITS


def granter(epoch: int) -> int:
    """Return what the epochs have in common that were granted out of one table, and nobody else's have."""
    return epoch >> _COUNT_BITS
