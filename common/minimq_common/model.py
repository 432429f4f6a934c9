"""The values that all roles share: messages, queues and routes.

Messages are created by the million, so they are `msgspec` structs without cyclic garbage collection. Their constructor
checks only the most common mistakes. All other checks are done for many messages at a time, when their batch is built:
a check in the constructor costs ten times as much.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntFlag
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

import google_crc32c
import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.places import MessageQueue as MessageQueue  # noqa: PLC0414 - users import it from here
from minimq_common.places import OfflineBroker as OfflineBroker  # noqa: PLC0414
from minimq_common.text_units import count_of, kind_of

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})

#: Broker id of a master; slaves have larger ids.
MASTER_ID = 0


class Permission(IntFlag):
    """Permissions of clients on the queues of a topic."""

    NONE = 0
    WRITE = 2
    READ = 4
    READ_WRITE = 6


#: Permissions by their names in options and commands.
PERMISSIONS: Mapping[str, Permission] = {
    "read-write": Permission.READ_WRITE,
    "read": Permission.READ,
    "write": Permission.WRITE,
    "none": Permission.NONE,
}


def permission_name(permission: int) -> str:
    """Return the name of a permission: read-write, read, write or none."""
    return next((name for name, value in PERMISSIONS.items() if value == permission), "none")


class TopicId(NamedTuple):
    """Identifies one creation of a topic on one broker: a topic that is deleted and created again gets another id.

    Attributes:
        number: log position at which the broker created the topic.
        created_ms: creation time. Distinguishes equal numbers of a broker that has lost its disk.
    """

    number: int
    created_ms: int


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to send.

    Attributes:
        topic: the topic to send to.
        body: the payload, at most 4 MiB by default (`--max-body-bytes` of the broker). May be empty, except in a
            compacted topic.
        tag: one label that consumers can filter by, at most 255 characters. In a subscription, `||` separates tags, so
            a tag that contains `||` needs a filter such as `where="TAGS = 'a||b'"`.
        keys: identifiers such as an order number. Selectors send messages with the same first key to the same queue,
            consumers can read the keys and filter by them (`where="KEYS = 'o-17'"`), and `Admin.find_messages` searches
            for them. In a compacted topic, the first key decides: only its latest message is kept. Keys have
            at least one character, and no NUL characters.
        properties: additional names and values, both text.
        message_group: for a FIFO topic. Messages of one group are consumed one after the other, in the order of
            sending. 1 to 64 characters.
        deliver_after_s: for a delayed message: delay in seconds from the time of sending, at most 366 days.
        deliver_at: or its delivery time: a `datetime` with a time zone, or seconds since 1970.
        recallable: a delayed message can be recalled before it is due: `producer.recall(receipt.recall_handle)`.
        is_tombstone: deletes its first key from a compacted topic; the body is empty. See `tombstone`.

    Raises:
        InvalidArgument: `topic` or `body` has a wrong type, or `keys` is a single text. Everything else is checked when
            the message is sent, before anything is stored.
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
        # A `MappingProxyType`, such as `NO_PROPERTIES`, cannot be pickled.
        topic, body, tag, keys, properties, *rest = msgspec.structs.astuple(self)
        return Message, (topic, body, tag, keys, dict(properties), *rest)

    def __post_init__(self) -> None:
        # Takes a tenth of the time of `send_many`. With `type(...)` it takes 15 % longer, with `isinstance` 55 %.
        if self.topic.__class__ is not str or self.body.__class__ is not bytes or self.keys.__class__ is str:
            _check_types(self)

    @classmethod
    def tombstone(cls, topic: str, key: str, properties: Mapping[str, str] = NO_PROPERTIES) -> Message:
        """Return a message that deletes a key from a compacted topic."""
        return cls(topic, b"", None, (key,), properties, is_tombstone=True)


class MessageFields(TypedDict, total=False):
    """The fields of a `Message` that have a default, as arguments by name.

    Attributes:
        tag: one label that consumers can filter by.
        keys: identifiers such as an order number.
        properties: additional names and values, both text.
        message_group: for a FIFO topic.
        deliver_after_s: delay in seconds from the time of sending.
        deliver_at: or the delivery time: a `datetime` with a time zone, or seconds since 1970.
        recallable: a delayed message can be recalled before it is due.
    """

    tag: str | None
    keys: Sequence[str]
    properties: Mapping[str, str]
    message_group: str | None
    deliver_after_s: float | None
    deliver_at: datetime | float | None
    recallable: bool


class Field(NamedTuple):
    """A field of `MessageFields`, for the encoders, the commands and the console."""

    #: "text", "texts", "properties", "duration", "time" or "switch".
    kind: str
    #: The option of `minimq produce`; without one, only JSON lines have the field.
    flag: str = ""
    metavar: str = ""
    help: str = ""
    #: The label of its input in the console; without one, the form has none.
    label: str = ""
    #: The property that carries the value to consumers, durations in ms, if the batch has no column for it.
    property: str = ""


#: The fields of `MessageFields`: add a field there, in `Message` and here, and everything else derives from it.
FIELDS: Mapping[str, Field] = {
    "tag": Field("text", "--tag", "TAG", "consumers can filter by it.", "Tag"),
    "keys": Field("texts"),
    "properties": Field("properties", "--property", "NAME=VALUE", "a property."),
    "message_group": Field("text", "--message-group", "NAME", "message group, for a FIFO topic.", "Message group"),
    "deliver_after_s": Field(
        "duration", "--after", "DURATION", "deliver after this delay, such as 90s or 1h30m.", "Deliver after"
    ),
    "deliver_at": Field("time", "--at", "TIME", "deliver at this time, for example 2026-12-24T18:00Z."),
    "recallable": Field(
        "switch",
        "--recallable",
        help="with --after or --at: can be recalled until then by the handles in `minimq delayed list`.",
    ),
}
#: The fields that properties carry.
CARRIED: Mapping[str, Field] = {name: each for name, each in FIELDS.items() if each.property}
#: Carries the message group, of which the header of a batch has only a hash: all messages of a batch share it.
MESSAGE_GROUP = "MESSAGE_GROUP"
MAX_MESSAGE_GROUP = 64


def carried(messages: Sequence[Message]) -> list[Mapping[str, str]]:
    """Return the properties of messages with those that carry fields. Raises `InvalidArgument`."""
    properties = [message.properties for message in messages]
    for name, about in CARRIED.items():
        values = [getattr(message, name) for message in messages]
        if values.count(None) < len(values):
            properties = [
                each if value is None else {**each, about.property: _carried_text(name, about, value)}
                for each, value in zip(properties, values, strict=True)
            ]
    return properties


def _carried_text(name: str, about: Field, value: object) -> str:
    if about.kind != "duration":
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidArgument(f"{name} is {value!r}: it must be a number of seconds above 0")
    return str(math.ceil(value * 1000))


def with_property(message: Message, name: str, value: str) -> Message:
    return msgspec.structs.replace(message, properties={**message.properties, name: value})


def _check_types(message: Message) -> None:
    topic: object = message.topic
    if not isinstance(topic, str):
        raise InvalidArgument(f"the topic of the message is {kind_of(topic)}: give text")
    if wrong := _wrong_in(message):
        raise InvalidArgument(wrong)


def wrong_message(messages: Iterable[object]) -> str | None:
    """Return a sentence about the first item that is not a message or has an invalid field; None if all are valid."""
    for message in messages:
        if not isinstance(message, Message):
            return f"a message is {kind_of(message)}: give a minimq.Message"
        if found := _wrong_in(message):
            return found
    return None


def _wrong_in(message: Message) -> str | None:
    return wrong_field([message.body], [message.tag], [message.keys], [message.properties])


def check_empty(message: Message, *, is_compacted: bool) -> None:
    """Raise `InvalidArgument` if the topic does not allow this empty body. Tombstones need a compacted topic."""
    if len(message.body):
        return
    if message.is_tombstone and not is_compacted:
        raise InvalidArgument(f"topic {message.topic!r} is not compacted: it takes no tombstones")
    if is_compacted and not message.is_tombstone:
        raise InvalidArgument(
            f"a message for topic {message.topic!r} has an empty body, and the topic is compacted: give it at least "
            "one byte, or delete the key with Message.tombstone(topic, key)"
        )
    if message.is_tombstone and not (message.keys and message.keys[0]):
        raise InvalidArgument("a tombstone has no key: Message.tombstone(topic, key) deletes a key")


def wrong_field(
    bodies: Iterable[object], tags: Iterable[object], keys: Iterable[object], properties: Iterable[object]
) -> str | None:
    """Return a sentence about the first invalid field, or None. Arguments are columns: one value per message."""
    return next(_wrong_values(bodies, tags, keys, properties), None)


def _wrong_values(
    bodies: Iterable[object], tags: Iterable[object], keys: Iterable[object], properties: Iterable[object]
) -> Iterator[str]:
    for body in bodies:
        if not isinstance(body, bytes | bytearray | memoryview):
            yield f"the body of the message is {kind_of(body)}: give bytes"
    texts: list[tuple[str, object]] = [("the tag", tag) for tag in tags if tag is not None]
    for together in keys:
        if isinstance(together, str) or not isinstance(together, Iterable):
            yield f"the keys of the message are {kind_of(together)}: give a list of texts"
            return
        texts += [("a key", key) for key in together]
    for together in properties:
        if not isinstance(together, Mapping):
            yield f"the properties of the message are {kind_of(together)}: give a dict of texts"
            return
        for name, value in together.items():
            texts += [("the name of a property", name), (f"property {str(name)[:40]!r}", value)]
    yield from filter(None, (_wrong_text(what, value) for what, value in texts))


def _wrong_text(what: str, value: object) -> str | None:
    if not isinstance(value, str):
        return f"{what} of the message is {kind_of(value)}: give text"
    has_half = any("\ud800" <= character <= "\udfff" for character in value)
    return f"{what} of the message has half a character: give text that UTF-8 can hold" if has_half else None


def check_message_group(name: str) -> str:
    """Return the name. Raises `InvalidArgument` if it is not a valid message group."""
    if not isinstance(name, str):
        raise InvalidArgument(f"the message group is {kind_of(name)}: give text")
    if not 0 < len(name) <= MAX_MESSAGE_GROUP:
        raise InvalidArgument(f"the message group has {len(name)} characters: it must have 1 to {MAX_MESSAGE_GROUP}")
    if not name.isprintable():
        raise InvalidArgument(f"the message group {name!r} has characters that cannot be printed: leave them out")
    return name


def group_hash_of(name: str) -> int:
    """Return the 32-bit hash by which brokers distinguish message groups; never 0."""
    return int(google_crc32c.value(name.encode())) or 1


#: Queues of a topic on one broker.
MAX_QUEUES = 1024
#: Queues of a topic on all brokers.
MAX_QUEUES_OF_A_TOPIC = 1 << 17


def check_all_readable(read_queues: int, write_queues: int) -> None:
    """Raise `InvalidArgument` if producers would send to queues that consumers do not see."""
    if read_queues < write_queues:
        raise InvalidArgument(
            f"{count_of(read_queues, 'read queue')} and {count_of(write_queues, 'write queue')}: messages in the other "
            "queues could not be read; use at least as many read queues"
        )


@dataclass(frozen=True, slots=True)
class QueueData:
    """The number of queues of a topic on one broker, and their permission.

    Attributes:
        broker_name: name of the broker.
        read_queues: number of queues that consumers see.
        write_queues: number of queues that producers see.
        permission: permission of clients.
        key_queues: number of queues of a compacted topic on all brokers; 0 for other topics.
        topic: name of the topic, only set in the routes of clients.
    """

    broker_name: str
    read_queues: int
    write_queues: int
    permission: Permission
    key_queues: int = 0
    topic: str = field(default="", compare=False)

    def readable(self, topic: str = "") -> list[MessageQueue]:
        """Return the queues that can be read. `topic` is required unless the attribute is set."""
        count = self.read_queues if self.permission & Permission.READ else 0
        return [MessageQueue(topic or self.topic, self.broker_name, queue_id) for queue_id in range(count)]


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The replicas of one broker name: their addresses (HOST:PORT) by broker id."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        """Address of the master, if one is known."""
        return self.addresses.get(MASTER_ID)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Everything a client needs to find the queues of one topic.

    Attributes:
        topic: name of the topic.
        queues: its queues on each broker, sorted by broker name.
        brokers: addresses of these brokers, by name.
        offline: brokers that carried the topic and have gone, sorted by name; they are not in `queues` or `brokers`.
    """

    topic: str
    queues: tuple[QueueData, ...]
    brokers: Mapping[str, BrokerData]
    offline: tuple[OfflineBroker, ...] = ()
    #: The run of the name server that reported it: what the same run no longer reports is gone.
    run: int = field(default=0, compare=False, repr=False)
    #: Number of queues from which a compacted topic chooses the queue of a key; 0 for other topics.
    key_queues: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_queues", self.queues[0].key_queues if self.queues else 0)

    def write_queues(self) -> list[MessageQueue]:
        """Return the queues that accept messages now: writable, on a broker that has a master. Sorted."""
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self._writable()
            for queue_id in range(data.write_queues)
        ]

    def write_queue_count(self) -> int:
        """Return the number of queues that accept messages now."""
        return sum(data.write_queues for data in self._writable())

    def read_queues(self) -> list[MessageQueue]:
        """Return the queues that can be read. Sorted."""
        return [queue for data in self.queues for queue in data.readable(self.topic)]

    def present(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue; if its broker has fewer queues now, the one that takes its place on this broker."""
        count = next((data.write_queues for data in self.queues if data.broker_name == queue.broker_name), 0)
        if not 0 < count <= queue.queue_id:
            return queue
        return MessageQueue(queue.topic, queue.broker_name, queue.queue_id % count)

    def _writable(self) -> Iterator[QueueData]:
        for data in self.queues:
            if data.permission & Permission.WRITE and self.master_of(data.broker_name) is not None:
                yield data

    def master_of(self, broker_name: str) -> str | None:
        """Return the address of the master of a broker name, if one is known."""
        broker = self.brokers.get(broker_name)
        return broker.master if broker else None


class MemberList(NamedTuple):
    """The members of a group as one broker sees them."""

    client_ids: Collection[str]
    #: Subscribed topics by client id; empty while all members have the same.
    topics: Mapping[str, Collection[str]]

    def subscribers(self, topic: str) -> tuple[str, ...]:
        """Return the client ids of the subscribers of a topic, sorted. The topic must have at least one."""
        return tuple(sorted(name for name in self.client_ids if not self.topics or topic in self.topics.get(name, ())))


def deciders(carriers: Mapping[str, Collection[str]], *, same_topics: bool) -> dict[str, str]:
    """Return, by topic, the broker whose member list decides how the queues are allocated."""
    first = {topic: min(brokers) for topic, brokers in carriers.items()}
    return dict.fromkeys(first, min(first.values(), default="")) if same_topics else first


_COUNT_BITS = 32


def first_epoch(term: int) -> int:
    """Return the number after which a master of this term numbers its epochs."""
    return term << _COUNT_BITS


def granter(epoch: int) -> int:
    """Return the term of the lease table that granted this epoch."""
    return epoch >> _COUNT_BITS
