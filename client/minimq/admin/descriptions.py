"""Results of `Admin`: snapshots of topics, queues and brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue, OfflineBroker, Permission
from minimq_common.text_units import kind_of
from minimq_common.timestamps import moment
from minimq_common.wire.convert import from_wire
from minimq_common.wire.protocol_bounds import YEAR_MS
from minimq_proto.v1 import broker_pb2, retention_pb2


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """One queue."""

    queue: MessageQueue
    min_offset: int
    #: The offset that the next message will get.
    max_offset: int
    last_stored_at: datetime | None

    @property
    def messages(self) -> int:
        """The number of stored messages."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic as one broker has it."""

    broker_name: str
    read_queues: int
    write_queues: int
    #: Clients may do what both this and the permission of the broker allow.
    permission: Permission
    created_at: datetime
    fifo: bool = False
    compaction: Compaction | None = None
    #: Seconds for which its messages are kept; 0: as long as the broker keeps others.
    retention_s: float = 0.0
    #: Maximum bytes on the broker: beyond it the oldest messages are deleted; 0: no limit of its own.
    retention_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic on all brokers that carry it."""

    topic: str
    settings: tuple[TopicSettings, ...]
    queues: tuple[QueueDescription, ...]
    #: Brokers that carry it and are offline, sorted by name; their messages are not counted.
    offline: tuple[OfflineBroker, ...] = ()
    #: Why brokers did not answer, by broker name; their messages are not counted.
    unanswered: Mapping[str, str] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """The number of stored messages in all queues."""
        return sum(queue.messages for queue in self.queues)


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """The report of a running broker about itself."""

    version: str
    started_at: datetime
    #: First position of the CommitLog that is still stored, in bytes.
    log_start: int
    log_end: int
    segments: int
    #: Size of the CommitLog.
    disk_bytes: int
    #: Counted since the start of the process, like all counters below.
    messages_in: int
    messages_out: int
    #: Write transactions; one may hold many batches.
    commits: int
    permission: Permission
    #: Its disk has failed: it stores nothing until it is restarted.
    store_failed: bool
    #: Seconds that its clock has jumped ahead; unless 0, nothing is deleted by age.
    clock_ahead_s: float
    #: Seconds that its newest message is ahead of its clock, because a clock was wrong; or 0.
    stamps_ahead_s: float
    #: Seconds of the slowest sync of its disk in the last minute, if that is a second or more; else 0.
    slow_sync_s: float
    #: Used share of the disk with the data, by all files, from 0 to 1.
    disk_used: float
    disk_free_bytes: int
    #: "normal", "warn", "delete-early" or "reject".
    disk_level: str
    #: Files of the CommitLog that retention has deleted.
    segments_deleted: int
    bytes_deleted: int
    #: Bytes that were deleted before their time because the disk was nearly full.
    bytes_deleted_early: int
    #: Other files fill the disk, so early deletion has stopped.
    disk_filled_by_others: bool
    #: Seconds for which messages are kept; 0 forever; None if unknown.
    retention_s: float | None
    #: Maximum bytes of the CommitLog; 0 without a limit; None if unknown.
    retention_bytes: int | None
    replication: ReplicationReport


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """One slave, as its master sees it."""

    replica_id: int
    connected: bool
    #: Log position up to which it has synced the log of the master.
    position: int
    behind_bytes: int
    #: Seconds since it last had the whole log; None if it never had.
    behind_s: float | None


@dataclass(frozen=True, slots=True)
class ReplicationReport:
    """A replica's own report about its role and the other replicas."""

    #: "alone", "master", "slave", or "undecided" until its controller answers.
    role: str
    replica_id: int
    term: int
    master_id: int
    #: Whether the master acknowledges a message only when all in-sync replicas have it.
    sync: bool
    #: Minimum number of in-sync replicas for that.
    min_in_sync: int
    #: Ids of the replicas that have every acknowledged message.
    in_sync: tuple[int, ...]
    #: Log position up to which all of them have the log, and up to which consumers can read.
    confirmed: int
    #: Seconds until the lease of the master ends unless it is renewed; None for other roles.
    lease_s: float | None
    #: Seconds for which its controller has not answered; 0 while it does.
    controller_silent_s: float
    #: Of a master: seconds for which it has served without its controller, because all in-sync replicas confirm its
    #: term; 0 if it does not.
    by_replicas_s: float
    connected: bool
    #: Of a slave: bytes of the master's log that it lacks; None if unknown.
    behind_bytes: int | None
    replicas: tuple[SlaveStatus, ...]


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One replica of a broker: its registration at the name servers, and its own report."""

    cluster: str
    broker_name: str
    #: 0 for the master.
    broker_id: int
    address: str
    report: BrokerReport | None
    error: str | None
    #: When it left, for a broker that is no longer registered; None for others.
    offline_since: datetime | None = None


def topic_from_wire(
    name: str,
    answers: Mapping[str, broker_pb2.DescribeTopicResponse],
    offline: Iterable[OfflineBroker],
    unanswered: Mapping[str, str] | None = None,
) -> TopicDescription:
    """Return the description of a topic."""
    return TopicDescription(
        topic=name,
        settings=tuple(
            from_wire(TopicSettings, answer.topic, broker_name=broker, compaction=compaction_from_wire(answer.topic))
            for broker, answer in answers.items()
        ),
        queues=tuple(
            QueueDescription(
                queue=MessageQueue(name, broker, status.queue_id),
                min_offset=status.min_offset,
                max_offset=status.max_offset,
                last_stored_at=moment(status.last_store_timestamp_ms) if status.last_store_timestamp_ms else None,
            )
            for broker, answer in answers.items()
            for status in answer.queues
        ),
        offline=tuple(offline),
        unanswered=dict(unanswered or {}),
    )


def report_from_wire(
    answer: broker_pb2.GetStatusResponse, rules: retention_pb2.GetRulesResponse | None = None
) -> BrokerReport:
    """Return the report of a broker."""
    used, free = answer.disk_used_bytes, answer.disk_free_bytes
    return from_wire(
        BrokerReport,
        answer,
        disk_used=used / max(used + free, 1),
        retention_s=None if rules is None else rules.retention_ms / 1000,
        retention_bytes=None if rules is None else rules.retention_bytes,
        replication=replication_from_wire(answer.replication),
    )


def replication_from_wire(answer: broker_pb2.ReplicationStatus) -> ReplicationReport:
    """Return the report of a broker about its role."""
    lease_s = answer.lease_ms / 1000 if answer.role == broker_pb2.BROKER_ROLE_MASTER else None
    return from_wire(ReplicationReport, answer, lease_s=lease_s)


@dataclass(frozen=True, slots=True)
class Compaction:
    """The rules of a compacted topic.

    The latest message of each key is kept; older ones are removed in the background.

    Attributes:
        min_lag_s: how long new messages are not compacted.
        tombstone_s: how long a tombstone stays after its first compaction. A reader that reads the whole topic
            within this time misses no deletion.
        dirty_ratio: compaction begins when this share of the stored data is not compacted yet, 0.01 to 1. A smaller
            share saves disk and costs CPU time.

    Raises:
        InvalidArgument: a number is out of range.
    """

    min_lag_s: float = 0.0
    tombstone_s: float = 86_400.0
    dirty_ratio: float = 0.5

    def __post_init__(self) -> None:
        for name in ("min_lag_s", "tombstone_s", "dirty_ratio"):
            given: object = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int | float):
                raise InvalidArgument(f"{name} is {kind_of(given)}: give a number")
        for name, value in (("min_lag_s", self.min_lag_s), ("tombstone_s", self.tombstone_s)):
            if not 0 <= value * 1000 <= YEAR_MS:
                raise InvalidArgument(f"{name} is {value}: it must be 0 to {YEAR_MS // 1000} (366 days)")
        if not 0.01 <= self.dirty_ratio <= 1:
            raise InvalidArgument(f"dirty_ratio is {self.dirty_ratio}: it must be 0.01 to 1")


def check_compaction(rules: object) -> None:
    """Raise `InvalidArgument` unless `rules` is a `Compaction` or None."""
    if rules is not None and not isinstance(rules, Compaction):
        raise InvalidArgument(f"compaction is {kind_of(rules)}: give minimq.Compaction(), or None")


def compaction_to_wire(rules: Compaction, key_queues: int) -> broker_pb2.Compaction:
    """Convert rules to the wire format; `key_queues` is the number of queues on all brokers together."""
    return broker_pb2.Compaction(
        key_queues=key_queues,
        min_lag_ms=round(rules.min_lag_s * 1000),
        tombstone_ms=round(rules.tombstone_s * 1000),
        dirty_percent=round(rules.dirty_ratio * 100),
    )


def compaction_from_wire(topic: broker_pb2.Topic) -> Compaction | None:
    """Return the rules of a topic; None if it is not compacted."""
    if not topic.HasField("compaction"):
        return None
    rules = topic.compaction
    return Compaction(rules.min_lag_ms / 1000, rules.tombstone_ms / 1000, rules.dirty_percent / 100)
