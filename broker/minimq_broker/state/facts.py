"""The durable facts of the kernel, and how all facts are encoded. Each is one entry of the CommitLog."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Union

import msgspec

from minimq_broker.groups.groups import GroupConfig
from minimq_broker.state.queue_ends import QueueKey
from minimq_common.errors import StoreError
from minimq_common.model import Permission, TopicId


class Topic(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    topic_id: int
    read_queues: int
    write_queues: int
    permission: int = Permission.READ_WRITE
    created_ms: int = 0
    #: FIFO topic: messages have message groups and keep their order.
    fifo: bool = False
    #: Number of queues on all brokers together, if each key belongs to one of them; else 0.
    key_queues: int = 0
    #: Its messages outlive the segments of the log.
    lasting: bool = False
    #: Settings of features, by name. A feature checks its own when the topic is set.
    settings: dict[str, dict[str, int]] = {}

    @property
    def identity(self) -> TopicId:
        """Identifies the topic even if the log was lost and a new one reuses its id."""
        return TopicId(self.topic_id, self.created_ms)

    @property
    def queues(self) -> int:
        """Number of queues that may hold messages."""
        return max(self.read_queues, self.write_queues)

    @property
    def queue_keys(self) -> list[QueueKey]:
        return [QueueKey(self.topic_id, queue_id) for queue_id in range(self.queues)]


class TopicSet(msgspec.Struct, frozen=True, tag="topic-set"):
    topic: Topic


class TopicDeleted(msgspec.Struct, frozen=True, tag="topic-deleted"):
    """A topic was deleted, together with the offsets of groups in it."""

    name: str


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True):
    topic_id: int
    queue_id: int
    offset: int


class OffsetsCommitted(msgspec.Struct, frozen=True, tag="offsets"):
    """A group committed offsets. Offsets never go back unless `forced`."""

    group: str
    offsets: tuple[CommittedOffset, ...]
    forced: bool = False
    #: Committed for monitoring only: the client never reads them back.
    published: bool | msgspec.UnsetType = msgspec.UNSET


class GroupStarted(msgspec.Struct, frozen=True, tag="group-started"):
    """The start offsets of a group in a topic were decided. Queues that are added later are read from their start."""

    group: str
    topic_id: int
    offsets: tuple[CommittedOffset, ...]
    #: When that was decided, in ms since 1970.
    at_ms: int = 0


class GroupAgreed(msgspec.Struct, frozen=True, tag="group-agreed"):
    """The shared configuration of the members of a group changed; None if no members are left."""

    group: str
    agreement: GroupConfig | None


class GroupDeleted(msgspec.Struct, frozen=True, tag="group-deleted"):
    """A group was deleted, with all its offsets, and those of its own topics that are listed here."""

    group: str
    topics: tuple[str, ...] = ()


class PermissionSet(msgspec.Struct, frozen=True, tag="permission"):
    """The permission of the whole broker, which limits that of every topic, changed."""

    permission: int


class TermBegun(msgspec.Struct, frozen=True, tag="term", omit_defaults=True):
    """A broker began to write as master. Lease epochs start with the term, so they grow across restarts."""

    term: int
    log_id: str = ""


class AtomicBegun(msgspec.Struct, frozen=True, tag="atomic"):
    """The entries in the next `size` bytes of the log are one atomic append: a log keeps all of them or none."""

    size: int


class FeatureUsed(msgspec.Struct, frozen=True, tag="feature-used"):
    """The log has entries of a feature from here on: a broker without it cannot read them."""

    name: str
    version: int


#: Facts that change the routes this broker registers at the name servers.
RouteFact = TopicSet | TopicDeleted | GroupDeleted | PermissionSet

#: The kernel's own facts. Features register theirs.
KernelFact = (
    TopicSet
    | TopicDeleted
    | OffsetsCommitted
    | GroupStarted
    | GroupAgreed
    | GroupDeleted
    | PermissionSet
    | TermBegun
    | AtomicBegun
    | FeatureUsed
)

Fact = msgspec.Struct

_encoder = msgspec.msgpack.Encoder()
#: The facts of features.
_registered: list[type[Fact]] = []


def register_facts(types: Iterable[type[Fact]]) -> None:
    """Add the facts of all features to those that `decode_fact` knows."""
    _registered[:] = types
    _decoder.cache_clear()


def known_facts() -> Any:
    """Return the union of all facts, of the kernel and of features."""
    return Union[KernelFact, *_registered]


@cache
def _decoder() -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(known_facts())


def encode_fact(fact: Fact) -> bytes:
    return _encoder.encode(fact)


def decode_fact(data: bytes | memoryview) -> Fact:
    """Return the fact that `encode_fact` wrote. Raises `StoreError` if this release does not know its kind."""
    try:
        fact: Fact = _decoder().decode(data)
    except (ValueError, RecursionError) as error:  # not damage: the checksum of the entry was verified
        raise StoreError(
            f"the fact is unknown to this release ({error}): open the directory with the newer release that wrote it"
        ) from None
    return fact
