"""Jobs for the writer, which return with a result or an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from minimq_broker.core.facts import Fact, OffsetsCommitted
from minimq_broker.core.held.delays import Delay, DueKey, RecallOutcome
from minimq_broker.core.held.staged_batches import TransactionId
from minimq_broker.core.state import QueueKey, State
from minimq_broker.store.held.due_index import DueIndex
from minimq_broker.store.log_reader import LogReader
from minimq_common.batch.header import Header
from minimq_common.errors import MiniMQError

if TYPE_CHECKING:
    from minimq_broker.store.commit_group import CommitGroup
    from minimq_broker.store.popping.pop_drafts import PopJob


def _nobody(_: object) -> None:
    pass


@dataclass(slots=True, eq=False)
class Job:
    """Something to write. The writer sets `error` or the results, then hands the job back."""

    error: MiniMQError | None = field(default=None, init=False)
    #: Called on the event loop when the job is finished.
    done: Callable[[Any], object] = field(default=_nobody, kw_only=True)

    #: Its group has no other job.
    alone = False
    #: Entries that it has looked at must not be removed before its group is applied.
    keeps_log = False
    #: It is of a slave, not of a master.
    replicates = False
    #: It acknowledges batches, for which more may be needed than for a fact.
    to_sender = False
    #: Jobs that pop cannot follow it in a group: they decide by the state.
    has_fact = False
    pops = False

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory, roughly."""
        return 256

    def decide(self, group: CommitGroup, log: LogReader) -> None:
        """Add entries to a group, or raise a `MiniMQError` without a trace. By the writer's thread."""
        raise NotImplementedError


class AppendStatus(IntEnum):
    """The guarantee that the sender of an acknowledged batch has."""

    #: It is on disk.
    OK = 0
    #: It will be on disk soon.
    NOT_SYNCED = 1
    #: It is on disk since an earlier try, and was not written again.
    ALREADY_STORED = 2


@dataclass(slots=True, eq=False)
class AppendJob(Job):
    """A batch for a queue; with a transaction it is only staged for it, with a delay it waits until it is due.

    Results: where the batch is, which is not where it was to go when an earlier try had stored it in another queue. The
    offset of a staged or delayed one is -1; a delayed one has a key, unless it was due at once.
    """

    topic: str
    queue_id: int
    data: bytes
    header: Header
    transaction: TransactionId | None = None
    delay: Delay | None = None
    times: JobTimes | None = None
    key_queues: int | None = None
    #: Of the sender, for the answer: the number of the request, when it came (monotonic), and who traces it.
    request_id: int = 0
    came_at: float = 0.0
    traced_by: Any = None
    status: AppendStatus = field(default=AppendStatus.OK, init=False)
    stored_queue_id: int = field(default=-1, init=False)
    base_offset: int = field(default=-1, init=False)
    stored_ms: int = field(default=0, init=False)
    due: DueKey | None = field(default=None, init=False)
    size: int = field(init=False)

    to_sender = True

    def __post_init__(self) -> None:
        self.size = len(self.data)

    def decide(self, group: CommitGroup, log: LogReader) -> None:
        """Give the batch its place, or find the one that it has."""
        group.add_batch(self)


@dataclass(slots=True, eq=False)
class JobTimes:
    """When a batch of which there will be spans was written, on the monotonic clock; 0 if it was not."""

    began_at: float = 0.0
    stored_at: float = 0.0


@dataclass(slots=True, eq=False)
class AtomicJob(Job):
    """Batches for several queues, and what a group has consumed for them: all of it is stored, or none.

    Results: those of the batches.
    """

    #: Each has a number; their `done` is not called.
    batches: Sequence[AppendJob]
    offsets: OffsetsCommitted | None = None
    begins: Sequence[int] = ()
    settles: PopJob | None = None
    #: Why nothing may be stored now, unless an earlier try has stored it.
    refusal: MiniMQError | None = None

    to_sender = True

    @property
    def has_fact(self) -> bool:  # type: ignore[override]
        """True if it commits offsets."""
        return self.offsets is not None

    @property
    def pops(self) -> bool:  # type: ignore[override]
        """True if it settles popped messages."""
        return self.settles is not None

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory, roughly."""
        return sum(batch.size for batch in self.batches) + (self.settles.size if self.settles else 0) + 256

    def decide(self, group: CommitGroup, log: LogReader) -> None:
        """Give all batches their places, or find those that they have."""
        group.add_atomic(self)


@dataclass(slots=True, eq=False)
class FactJob(Job):
    """A fact to record.

    `make` is called by the writer with the state as of all earlier jobs, and returns the fact, or None when there
    is nothing to record; it raises a `MiniMQError` to refuse. A job whose fact does not depend on the state sets
    `alone` to False, so that many share one sync. One that sets `keeps_log` has looked for entries.
    """

    make: Callable[[State], Fact | None]
    alone: bool = True
    keeps_log: bool = False
    fact: Fact | None = field(default=None, init=False)

    has_fact = True

    def decide(self, group: CommitGroup, log: LogReader) -> None:
        """Record the fact."""
        self.fact = self.make(group.state)
        if self.fact is not None:
            group.add(self.fact)


@dataclass(slots=True, eq=False)
class ReplicaJob(Job):
    """Entries of the master's log for that of a slave, unchanged. They begin where the log of the slave ends.

    It returns when they are synced here, whatever the other replicas have.
    """

    position: int
    entries: Sequence[bytes]

    replicates = True
    keeps_log = True  # one of the entries may be a fact that does

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory."""
        return sum(map(len, self.entries))

    def decide(self, group: CommitGroup, log: LogReader) -> None:
        """Take the entries in."""
        group.add_entries(self)


@dataclass(slots=True, eq=False)
class PublishJob(Job):
    """Some of the batches that a transaction has left to publish, not more than one transaction of the writer takes.

    Results: how many do not wait any more; none when there is nothing left.
    """

    name: str
    published: int = field(default=0, init=False)

    alone = True

    def decide(self, group: CommitGroup, log: LogReader) -> None:
        """Publish them. Raises `StoreFull` when the disk is nearly full."""
        self.published = group.publish_next(self.name, log)


@dataclass(slots=True, eq=False)
class DueJob(Job):
    """The next delayed batches that are due by the clock of the writer, as many as one commit takes, to be published.

    Also on a disk that accepts nothing more, since segments cannot be removed before.

    Results: how many batches and messages were published, and how late each batch was, in ms; how many batches were
    passed over since they were recalled, their topic was deleted, or they are damaged; whether more are due.
    """

    messages: int = field(default=0, init=False)
    late_ms: list[int] = field(default_factory=list, init=False)
    recalled: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    lost: int = field(default=0, init=False)
    has_more: bool = field(default=False, init=False)

    @property
    def published(self) -> int:
        """The number of published batches."""
        return len(self.late_ms)

    def decide(self, group: CommitGroup, log: LogReader) -> None:
        """Write them to their queues."""
        group.delays.publish(self, DueIndex(log))


@dataclass(slots=True, eq=False)
class RecallJob(Job):
    """Delayed batches of a topic, to be taken back if they still wait.

    Results: what has become of each, in their order.
    """

    topic: str
    keys: Sequence[DueKey]
    outcomes: list[RecallOutcome] = field(default_factory=list, init=False)

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory, roughly."""
        return 256 + 64 * len(self.keys)

    def decide(self, group: CommitGroup, log: LogReader) -> None:
        """Take them back. Raises `TopicNotFound`."""
        group.delays.recall(self, DueIndex(log))


@dataclass(slots=True, eq=False)
class Call:
    """Something else that the writer's thread does, between two groups."""

    run: Callable[[], None]
    done: Future[None] = field(default_factory=Future)

    #: Bytes that the call holds in memory: next to none.
    size = 0


#: Called with jobs that are acknowledged or refused, and the queues that readers see grown: by the writer's thread, or
#: by the one that confirms what a master with slaves has written.
Notify = Callable[[list[Job], Set[QueueKey]], None]


def groups_of(jobs: list[Job | Call]) -> list[list[Job] | Call]:
    """Split jobs so that one whose decision needs the state is alone in its group; a call is not.

    Those for popped queues share a group, as they know of each other, but not with a fact before them.
    """
    groups: list[list[Job] | Call] = []
    group: list[Job] | None = None  # that more may join
    has_fact = False
    for job in jobs:
        if isinstance(job, Call):
            groups.append(job)
            group = None
            continue
        if group is None or job.alone or (has_fact and job.pops):
            group, has_fact = [], False
            groups.append(group)
        group.append(job)
        has_fact = has_fact or job.has_fact
        if job.alone:
            group = None
    return groups
