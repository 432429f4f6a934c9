"""The durable facts of a broker other than batches. Each is one entry of the CommitLog."""

from __future__ import annotations

import msgspec

from minimq_broker.core.agreement import GroupConfig
from minimq_broker.core.held.delays import BatchesRecalled, DelaysSetBack, DueSkipped
from minimq_broker.core.held.staged_batches import HalfOutcome
from minimq_broker.core.popping.pop_runs import PopMoved
from minimq_broker.core.upkeep.retention import RetentionRules
from minimq_common.errors import StoreError
from minimq_common.model import Permission, TopicId


class TopicCompaction(msgspec.Struct, frozen=True):
    """The rules by which a topic is compacted by key. Times are in ms."""

    key_queues: int
    #: Messages that were stored less than so long ago are not looked at yet.
    min_lag_ms: int
    #: How long a tombstone stays after it was compacted first.
    tombstone_ms: int
    #: Part of what is stored that was not compacted yet, at which compaction begins.
    dirty_percent: int


class Topic(msgspec.Struct, frozen=True):
    """A topic as this broker carries it.

    The id is the log position at which the topic was created: a topic that is deleted and created again has another
    one, so that nothing of the former shows through.
    """

    name: str
    topic_id: int
    read_queues: int
    write_queues: int
    permission: int = Permission.READ_WRITE
    created_ms: int = 0
    #: Its messages have message groups, whose order is kept. All other topics are stored as before there were such.
    is_fifo: bool | msgspec.UnsetType = msgspec.UNSET
    #: Of each key the latest message is kept, and older ones are removed.
    compaction: TopicCompaction | msgspec.UnsetType = msgspec.UNSET
    #: Rules of its own; without one that of the broker holds.
    retention_ms: int | msgspec.UnsetType = msgspec.UNSET
    retention_bytes: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def identity(self) -> TopicId:
        """Its id, also among those of a log that was lost."""
        return TopicId(self.topic_id, self.created_ms)

    @property
    def fifo(self) -> bool:
        """True for a FIFO topic."""
        return bool(self.is_fifo)

    @property
    def key_queues(self) -> int:
        """Number of queues of a compacted topic on all brokers together; 0 for any other topic."""
        return self.compaction.key_queues if self.compaction else 0

    @property
    def retention(self) -> RetentionRules:
        """Its own rules; 0 stands for none."""
        return RetentionRules(self.retention_ms or 0, self.retention_bytes or 0)

    @property
    def queues(self) -> int:
        """Number of queues that may hold messages."""
        return max(self.read_queues, self.write_queues)


class TopicSet(msgspec.Struct, frozen=True, tag="topic-set"):
    """A topic was created or changed."""

    topic: Topic


class TopicDeleted(msgspec.Struct, frozen=True, tag="topic-deleted"):
    """A topic was deleted, and with it the offsets that groups had in it."""

    name: str


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True):
    """The next offset that a group will read of one queue."""

    topic_id: int
    queue_id: int
    offset: int
    #: See `Deliveries`; None: as before, and none at a new offset.
    tries: int | None = None
    epoch: int = 0
    in_hand_end: int = 0


class Deliveries(msgspec.Struct, frozen=True, array_like=True):
    """Deliveries of messages from a committed offset on that did not end: their members died, or have them now."""

    tries: int
    epoch: int
    #: Where the messages of the latest end; 0 if it is not known.
    in_hand_end: int = 0


class OffsetsCommitted(msgspec.Struct, frozen=True, tag="offsets"):
    """A group moved on. Offsets never go back unless `forced`."""

    group: str
    offsets: tuple[CommittedOffset, ...]
    forced: bool = False
    #: For monitoring: whoever commits them never reads them back.
    published: bool | msgspec.UnsetType = msgspec.UNSET


class GroupStarted(msgspec.Struct, frozen=True, tag="group-started"):
    """It was decided, in ms since 1970, where a group begins in a topic; later queues are read from their start."""

    group: str
    topic_id: int
    offsets: tuple[CommittedOffset, ...]
    at_ms: int = 0


class GroupAgreed(msgspec.Struct, frozen=True, tag="group-agreed"):
    """The members of a group agree on something else than before; on nothing when there are no members any more."""

    group: str
    agreement: GroupConfig | None


class GroupDeleted(msgspec.Struct, frozen=True, tag="group-deleted"):
    """A group was deleted, with all its offsets, and with those of its own topics that are named."""

    group: str
    topics: tuple[str, ...] = ()


class PermissionSet(msgspec.Struct, frozen=True, tag="permission"):
    """The permission of the broker, which holds for all of its topics, has changed."""

    permission: int


class AccessSet(msgspec.Struct, frozen=True, tag="access"):
    """The users and rules of the cluster have changed; `document` is all of them, as it travels."""

    version: int
    document: bytes


class TermBegun(msgspec.Struct, frozen=True, tag="term", omit_defaults=True):
    """A broker began to write, as master. Epochs of leases start with the term, so that they grow over restarts.

    The first one in a log gives the log an identity, drawn at random: all of its copies have it, and no other log.
    """

    term: int
    log_id: str = ""


class StagedSequences(msgspec.Struct, frozen=True, array_like=True):
    """Staged batches of one producer, by their sequence numbers."""

    producer_id: int
    sequences: tuple[int, ...]


class TransactionDecided(msgspec.Struct, frozen=True, tag="transaction-decided"):
    """It is decided which of the batches that are staged here make up a transaction.

    `decision` is what the client has decided, for all brokers, as it came; `parts` are those of this one, in the order
    in which they are published.
    """

    name: str
    number: int
    decision: bytes
    parts: tuple[StagedSequences, ...]


class PublicationSkipped(msgspec.Struct, frozen=True, tag="publication-skipped"):
    """The next batches of a transaction, in its order, cannot be read any more: they are not published."""

    name: str
    number: int
    count: int


class TransactionsExpired(msgspec.Struct, frozen=True, tag="transactions-expired"):
    """Some undecided transactions, by name and number, have expired: what is staged for them is dropped."""

    transactions: tuple[tuple[str, int], ...]


class TransactionPrepared(msgspec.Struct, frozen=True, tag="transaction-prepared"):
    """A transaction has staged all it will, and its end may be decided elsewhere now: it is not idle."""

    name: str
    number: int


class AtomicBegun(msgspec.Struct, frozen=True, tag="atomic"):
    """The entries that follow, of so many bytes, are one atomic append: a log has all of them or none."""

    size: int


class HalfEnded(msgspec.Struct, frozen=True, tag="half-ended"):
    """A transaction with half messages ended: its batches are published if it is committed."""

    name: str
    number: int
    outcome: HalfOutcome


#: Facts that change what name servers are told.
RouteFact = TopicSet | TopicDeleted | GroupDeleted | PermissionSet

Fact = (
    TopicSet
    | TopicDeleted
    | OffsetsCommitted
    | GroupStarted
    | GroupAgreed
    | GroupDeleted
    | PermissionSet
    | AccessSet
    | TermBegun
    | TransactionDecided
    | PublicationSkipped
    | TransactionsExpired
    | TransactionPrepared
    | HalfEnded
    | PopMoved
    | AtomicBegun
    | BatchesRecalled
    | DueSkipped
    | DelaysSetBack
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Fact] = msgspec.msgpack.Decoder(Fact)


def encode_fact(fact: Fact) -> bytes:
    """Return the fact as it stands in the log."""
    return _encoder.encode(fact)


def decode_fact(data: bytes | memoryview) -> Fact:
    """Return the fact that `encode_fact` wrote. Raises `StoreError` when it is of a kind that this release lacks."""
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError) as error:  # the bytes are those that were written: the entry has a checksum
        raise StoreError(
            f"the fact is not known ({error}): it was written by a newer release, which can open it"
        ) from None
