"""Jobs for the writer, which return with a result or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum

from minimq_broker.core.delays import Delay, DueKey
from minimq_broker.core.facts import Fact, OffsetsCommitted
from minimq_broker.core.staged_batches import TransactionId
from minimq_broker.core.state import QueueKey, State
from minimq_broker.store.delay_jobs import DueJob, RecallJob
from minimq_broker.store.half_drafts import EndJob
from minimq_broker.store.job import Job
from minimq_broker.store.pop_drafts import PopJob
from minimq_common.batch import Header
from minimq_common.errors import MiniMQError


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
    done: Callable[[AppendJob], None]
    transaction: TransactionId | None = None
    delay: Delay | None = None
    times: JobTimes | None = None
    status: AppendStatus = field(default=AppendStatus.OK, init=False)
    stored_queue_id: int = field(default=-1, init=False)
    base_offset: int = field(default=-1, init=False)
    stored_ms: int = field(default=0, init=False)
    due: DueKey | None = field(default=None, init=False)

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory."""
        return len(self.data)


@dataclass(slots=True, eq=False)
class JobTimes:
    """When a batch of which there will be spans was written, on the monotonic clock; 0 if it was not.

    Attributes:
        began_at: the writer began to write the commit with it.
        stored_at: that was on disk.
    """

    began_at: float = 0.0
    stored_at: float = 0.0


@dataclass(slots=True, eq=False)
class AtomicJob(Job):
    """Batches for several queues, and what a group has consumed for them: all of it is stored, or none.

    Attributes:
        batches: each has a number; their `done` is not called.
        offsets: the committed offsets of the group, of queues that it reads under leases.
        begins: from where on each of these queues was read.
        settles: the settles of the group, of queues that it pops.
        refusal: why nothing may be stored now, unless an earlier try has stored it.
        done: called when all is stored or refused.

    Results: those of the batches.
    """

    batches: Sequence[AppendJob]
    offsets: OffsetsCommitted | None
    begins: Sequence[int]
    settles: PopJob | None
    done: Callable[[AtomicJob], None]
    refusal: MiniMQError | None = None

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory, roughly."""
        return sum(batch.size for batch in self.batches) + (self.settles.size if self.settles else 0) + 256


@dataclass(slots=True, eq=False)
class FactJob(Job):
    """A fact to record.

    `decide` is called by the writer with the state as of all earlier jobs, and returns the fact, or None when there
    is nothing to record; it raises a `MiniMQError` to refuse. A job whose fact does not depend on the state sets
    `alone` to False, so that many share one sync. One that sets `keeps_log` has looked for entries: none is removed
    before what it decides is applied.
    """

    decide: Callable[[State], Fact | None]
    done: Callable[[FactJob], None]
    alone: bool = True
    keeps_log: bool = False
    fact: Fact | None = field(default=None, init=False)

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory, roughly."""
        return 256


@dataclass(slots=True, eq=False)
class ReplicaJob(Job):
    """Entries of the master's log for that of a slave, unchanged. They begin where the log of the slave ends.

    It returns when they are synced here, whatever the other replicas have.
    """

    position: int
    entries: Sequence[bytes]
    done: Callable[[ReplicaJob], None]

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory."""
        return sum(map(len, self.entries))


@dataclass(slots=True, eq=False)
class PublishJob(Job):
    """Some of the batches that a transaction has left to publish, not more than one transaction of the writer takes.

    Results: how many do not wait any more; none when there is nothing left.
    """

    name: str
    done: Callable[[PublishJob], None]
    published: int = field(default=0, init=False)

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory, roughly."""
        return 256


AnyJob = AppendJob | AtomicJob | FactJob | ReplicaJob | PublishJob | PopJob | DueJob | RecallJob | EndJob


@dataclass(slots=True, eq=False)
class Call:
    """Something else that the writer's thread does, between two groups."""

    run: Callable[[], None]
    done: Future[None] = field(default_factory=Future)

    @property
    def size(self) -> int:
        """Bytes that the call holds in memory: next to none."""
        return 0


#: Called with jobs that are acknowledged or refused, and the queues that readers see grown: by the writer's thread, or
#: by the one that confirms what a master with slaves has written.
Notify = Callable[[list[AnyJob], Set[QueueKey]], None]


def keeps_log(jobs: list[AnyJob]) -> bool:
    """Return whether a group depends on entries that must not be removed before it is applied.

    A fact that does is alone; what a master sends may have such a fact in it.
    """
    first = jobs[0]
    return isinstance(first, ReplicaJob) or (isinstance(first, FactJob) and first.keeps_log)


def groups_of(jobs: list[AnyJob | Call]) -> Iterator[list[AnyJob] | Call]:
    """Split jobs so that one whose decision needs the state is alone in its group; a call is not.

    Those for popped queues share a group, as they know of each other, but not with a fact before them.
    """
    group: list[AnyJob] = []
    has_fact = False
    for job in jobs:
        is_alone = isinstance(job, PublishJob) or (isinstance(job, FactJob) and job.alone)
        settles = isinstance(job, PopJob) or (isinstance(job, AtomicJob) and job.settles is not None)
        if group and (is_alone or isinstance(job, Call) or (has_fact and settles)):
            yield group
            group, has_fact = [], False
        has_fact = has_fact or isinstance(job, FactJob) or (isinstance(job, AtomicJob) and job.offsets is not None)
        if isinstance(job, Call):
            yield job
            continue
        group.append(job)
        if is_alone:
            yield group
            group, has_fact = [], False
    if group:
        yield group
