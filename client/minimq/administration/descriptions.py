"""What `Admin` answers with: topics, queues and brokers as they are at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from minimq_common.model import MessageQueue, Permission
from minimq_common.wire import permission_from_wire
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
        """How many messages are stored."""
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
    """

    broker_name: str
    read_queues: int
    write_queues: int
    permission: Permission
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic on all brokers that carry it.

    Attributes:
        topic: its name.
        settings: one item for each broker, sorted by broker name.
        queues: all queues, sorted.
    """

    topic: str
    settings: tuple[TopicSettings, ...]
    queues: tuple[QueueDescription, ...]

    @property
    def messages(self) -> int:
        """How many messages are stored in all queues."""
        return sum(queue.messages for queue in self.queues)


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What a running broker says of itself.

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
        disk_used: used part of the disk that the data is on, by all files together, from 0 to 1.
        disk_free_bytes: what is left of it.
        disk_level: what that calls for: "normal", "warn", "delete-early" or "refuse".
        segments_deleted: files of the CommitLog that retention has deleted since the start.
        bytes_deleted: size of those files.
        retention_s: seconds for which messages are kept; 0 for ever.
        retention_bytes: how much the CommitLog may use; 0 without a limit.
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
    disk_used: float
    disk_free_bytes: int
    disk_level: str
    segments_deleted: int
    bytes_deleted: int
    retention_s: float
    retention_bytes: int


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
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    report: BrokerReport | None
    error: str | None


def report_from_wire(answer: broker_pb2.GetStatusResponse) -> BrokerReport:
    """Return what a broker said of itself."""
    return BrokerReport(
        version=answer.version,
        started_at=moment(answer.started_ms),
        log_start=answer.log_start,
        log_end=answer.log_end,
        segments=answer.segments,
        disk_bytes=answer.disk_bytes,
        messages_in=answer.messages_in,
        messages_out=answer.messages_out,
        commits=answer.commits,
        permission=permission_from_wire(answer.permission),
        disk_used=answer.disk_used_bytes / max(answer.disk_used_bytes + answer.disk_free_bytes, 1),
        disk_free_bytes=answer.disk_free_bytes,
        disk_level=_DISK_LEVELS.get(answer.disk_level, "unknown"),
        segments_deleted=answer.segments_deleted,
        bytes_deleted=answer.bytes_deleted,
        retention_s=answer.retention_ms / 1000,
        retention_bytes=answer.retention_bytes,
    )


_DISK_LEVELS = {
    broker_pb2.DISK_LEVEL_NORMAL: "normal",
    broker_pb2.DISK_LEVEL_WARN: "warn",
    broker_pb2.DISK_LEVEL_DELETE_EARLY: "delete-early",
    broker_pb2.DISK_LEVEL_REFUSE: "refuse",
}


def name_of(permission: Permission) -> str:
    """Return a permission as people write it: read-write, read, write or none."""
    return {Permission.READ_WRITE: "read-write", Permission.READ: "read", Permission.WRITE: "write"}.get(
        permission, "none"
    )


def moment(ms: int) -> datetime:
    """Return the moment that many ms after 1970 began, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
