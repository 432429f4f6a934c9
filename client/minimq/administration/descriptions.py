"""The answers of `Admin`: topics, queues and brokers as they are at one moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from minimq_common.errors import InvalidArgument
from minimq_common.model import AwayBroker, MessageQueue, Permission
from minimq_common.moments import moment
from minimq_common.wire.convert import from_wire
from minimq_common.wire.protocol_bounds import YEAR_MS
from minimq_common.words import kind_of
from minimq_proto.v1 import broker_pb2


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """One queue.

    Attributes:
        queue: which one.
        min_offset: first offset that is still stored.
        max_offset: the offset that the next message will get.
        last_stored_at: when the newest message was stored; None when there has been none.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_stored_at: datetime | None

    @property
    def messages(self) -> int:
        """The number of stored messages."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic as one broker has it.

    Attributes:
        broker_name: the broker.
        read_queues: how many queues consumers see.
        write_queues: how many queues producers see.
        permission: what may be done with them, if the permission of the broker allows it as well.
        created_at: when the broker created the topic.
        fifo: its messages have message groups, whose order is kept.
        compaction: how it is compacted by key; None if it is not.
        retention_s: for how many seconds its messages are kept; 0: as long as the broker keeps others.
        retention_bytes: bytes that it may have on the broker before the oldest messages go; 0: no limit of its own.
    """

    broker_name: str
    read_queues: int
    write_queues: int
    permission: Permission
    created_at: datetime
    fifo: bool = False
    compaction: Compaction | None = None
    retention_s: float = 0.0
    retention_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic on all brokers that carry it.

    Attributes:
        topic: its name.
        settings: one item for each broker, sorted by broker name.
        queues: all queues, sorted.
        away: brokers that carry it and have gone, sorted by name: what they store is not counted here.
        unanswered: why brokers did not answer, by broker name: what they store is not counted here.
    """

    topic: str
    settings: tuple[TopicSettings, ...]
    queues: tuple[QueueDescription, ...]
    away: tuple[AwayBroker, ...] = ()
    unanswered: Mapping[str, str] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """The number of stored messages in all queues."""
        return sum(queue.messages for queue in self.queues)

    def hidden_by(self, read_queues: int, brokers: Collection[str] = ()) -> int:
        """Return how many stored messages new groups and replays would not see any more with fewer queues.

        Args:
            read_queues: how many queues consumers would see on each broker.
            brokers: on which the topic would be changed; all if empty.
        """
        shown = {each.broker_name: each.read_queues for each in self.settings}
        return sum(
            each.messages
            for each in self.queues
            if read_queues <= each.queue.queue_id < shown.get(each.queue.broker_name, 0)
            and (not brokers or each.queue.broker_name in brokers)
        )


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """The report of a running broker about itself.

    Attributes:
        version: of minimq.
        started_at: when the process began to serve.
        log_start: first position of the CommitLog that is still stored, in bytes.
        log_end: position after the last one.
        segments: files of the CommitLog.
        disk_bytes: size of these files.
        messages_in: messages stored since the start.
        messages_out: messages delivered since the start.
        commits: write transactions since the start, each of which may hold many batches.
        permission: what may be done with all of its topics.
        store_failed: its disk has failed: nothing is stored until it is started anew.
        clock_ahead_s: by how much its clock has jumped ahead, so that nothing is deleted by it, in seconds; or 0.
        stamps_ahead_s: by how much its newest message is ahead of its clock, which was wrong, in seconds; or 0.
        disk_used: used part of the disk that the data is on, by all files together, from 0 to 1.
        disk_free_bytes: what is left of it.
        disk_level: what that calls for: "normal", "warn", "delete-early" or "refuse".
        segments_deleted: files of the CommitLog that retention has deleted since the start.
        bytes_deleted: size of those files.
        bytes_deleted_early: what a nearly full disk made it delete before its time.
        disk_filled_by_others: other files fill the disk, so that it deletes nothing more early.
        retention_s: seconds for which messages are kept; 0 forever.
        retention_bytes: how much the CommitLog may use; 0 without a limit.
        replication: what it is among its replicas.
    """

    version: str
    started_at: datetime
    log_start: int
    log_end: int
    segments: int
    disk_bytes: int
    messages_in: int
    messages_out: int
    commits: int
    permission: Permission
    store_failed: bool
    clock_ahead_s: float
    stamps_ahead_s: float
    disk_used: float
    disk_free_bytes: int
    disk_level: str
    segments_deleted: int
    bytes_deleted: int
    bytes_deleted_early: int
    disk_filled_by_others: bool
    retention_s: float
    retention_bytes: int
    replication: ReplicationReport


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """One slave, as its master sees it.

    Attributes:
        replica_id: its number.
        connected: whether it follows.
        position: up to where it has synced the log of the master.
        behind_bytes: how much of the log it has not.
        behind_s: seconds since it had all that there was; None when it never had.
    """

    replica_id: int
    connected: bool
    position: int
    behind_bytes: int
    behind_s: float | None


@dataclass(frozen=True, slots=True)
class ReplicationReport:
    """The place of a broker among its replicas, as it reports it.

    Attributes:
        role: "alone", "master", "slave", or "undecided" before its controller has told it.
        replica_id: its own number, which never changes.
        term: of the master; it grows with each.
        master_id: replica id of the master.
        sync: whether the master acknowledges what all replicas in sync have.
        min_in_sync: how many of them it takes then.
        in_sync: ids of the replicas that have all that is acknowledged.
        confirmed: log position up to which all of them have everything, and consumers can read.
        lease_s: for how long the master may serve if it hears from nobody, in seconds; None for others.
        controller_silent_s: for how long its controller has not answered, in seconds; 0 while it does.
        by_replicas_s: of a master: for how long it has been serving without its controller, since all replicas in sync
            confirm it, in seconds; 0 if it does not.
        connected: of a slave: whether it follows its master now.
        behind_bytes: of a slave: how much of the log of the master it has not; None when that is not known.
        replicas: of a master: its slaves.
    """

    role: str
    replica_id: int
    term: int
    master_id: int
    sync: bool
    min_in_sync: int
    in_sync: tuple[int, ...]
    confirmed: int
    lease_s: float | None
    controller_silent_s: float
    by_replicas_s: float
    connected: bool
    behind_bytes: int | None
    replicas: tuple[SlaveStatus, ...]


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One replica of a broker: what the name servers know of it, and what it says itself.

    Attributes:
        cluster: name of its cluster.
        broker_name: shared by the master and its slaves.
        broker_id: 0 for the master.
        address: HOST:PORT.
        report: None when it did not answer.
        error: why it did not.
        away_since: when it went, for a broker that is registered no more; None for others.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    report: BrokerReport | None
    error: str | None
    away_since: datetime | None = None


def topic_from_wire(
    name: str,
    answers: Mapping[str, broker_pb2.DescribeTopicResponse],
    away: Iterable[AwayBroker],
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
        away=tuple(away),
        unanswered=dict(unanswered or {}),
    )


def report_from_wire(answer: broker_pb2.GetStatusResponse) -> BrokerReport:
    """Return the report of a broker."""
    used, free = answer.disk_used_bytes, answer.disk_free_bytes
    return from_wire(
        BrokerReport,
        answer,
        disk_used=used / max(used + free, 1),
        replication=replication_from_wire(answer.replication),
    )


def replication_from_wire(answer: broker_pb2.ReplicationStatus) -> ReplicationReport:
    """Return what a broker says of its role."""
    lease_s = answer.lease_ms / 1000 if answer.role == broker_pb2.BROKER_ROLE_MASTER else None
    return from_wire(ReplicationReport, answer, lease_s=lease_s)


# ---- Compaction ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compaction:
    """The rules by which a topic is compacted.

    Of each key the latest message is kept, and older ones are removed in the background.

    Attributes:
        min_lag_s: seconds for which new messages are not compacted.
        tombstone_s: seconds for which a tombstone stays after its first compaction. A reader that reads the whole topic
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
    """Raise `InvalidArgument` unless these are the rules of a compacted topic, or None for one that is not."""
    if rules is not None and not isinstance(rules, Compaction):
        raise InvalidArgument(f"compaction is {kind_of(rules)}: give minimq.Compaction(), or None")


def compaction_to_wire(rules: Compaction, key_queues: int) -> broker_pb2.Compaction:
    """Return the rules for a topic with so many queues on all brokers as they travel."""
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
