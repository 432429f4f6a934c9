"""Jobs for the writer, which sets a result or an error in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from minimq_broker.calls.changes import AdminChange, change_of
from minimq_broker.state.facts import Fact, OffsetsCommitted
from minimq_broker.state.queue_ends import HeldKey
from minimq_broker.state.state import QueueKey, State
from minimq_common.batch.header import Header
from minimq_common.errors import MinimqError

if TYPE_CHECKING:
    from minimq_broker.commit.commit_group import CommitGroup


#: Limits on the held batches that one commit releases, so that other jobs do not wait long. Small ones cost time, hence
#: the number.
MAX_RELEASED_BYTES = 16 << 20
MAX_RELEASED = 500


def _ignore(_: object) -> None:
    pass


@dataclass(slots=True, eq=False)
class Job:
    """A unit of work for the writer, which sets `error` or the results and passes the job to `Notify`."""

    error: MinimqError | None = field(default=None, init=False)
    #: Called on the event loop when the job is finished.
    done: Callable[[Any], object] = field(default=_ignore, kw_only=True)

    #: Must be the only job of its group.
    alone = False
    #: Accepted by slaves only; all others by the master only.
    replicates = False
    #: Acknowledges batches, which may need more replicas than a fact.
    to_sender = False
    #: Jobs with `fresh` cannot follow it in a group, as they decide by the state.
    has_fact = False
    fresh = False

    @property
    def size(self) -> int:
        """Approximate memory of the job, in bytes."""
        return 256

    def decide(self, group: CommitGroup) -> None:
        """Add entries to a group, or raise a `MinimqError` and leave it unchanged. Called on the writer's thread."""
        raise NotImplementedError


class AppendStatus(IntEnum):
    #: The batch is on disk.
    OK = 0
    #: An earlier attempt stored the batch; it was not written again.
    ALREADY_STORED = 1


@dataclass(slots=True, eq=False)
class AppendJob(Job):
    """A batch for a queue: to be appended, or held by a feature.

    Results: where the batch is stored, which may be another queue if an earlier attempt went there. The offset of a
    held batch is -1. If it is held until a time, it has a key in `held`.
    """

    topic: str
    queue_id: int
    data: bytes
    header: Header
    #: For the feature that it names, see `Hold`.
    hold: Any = None
    key_queues: int | None = None
    #: `Caller.tag` of the sender.
    user: int = field(default=0, kw_only=True)
    #: For the answer to the sender: request number, monotonic time of arrival.
    request_id: int = 0
    came_at: float = 0.0
    status: AppendStatus = field(default=AppendStatus.OK, init=False)
    stored_queue_id: int = field(default=-1, init=False)
    base_offset: int = field(default=-1, init=False)
    stored_ms: int = field(default=0, init=False)
    held: HeldKey | None = field(default=None, init=False)
    size: int = field(init=False)

    to_sender = True

    def __post_init__(self) -> None:
        self.size = len(self.data)

    def decide(self, group: CommitGroup) -> None:
        group.add_batch(self)


class Progress:
    """The progress of a group in an atomic append. Records nothing, unless overridden."""

    feature = ""  # that has the facts; empty if the kernel has them
    #: See `Job`.
    has_fact = False
    fresh = False

    @property
    def size(self) -> int:
        """Approximate memory, in bytes."""
        return 0

    def decide(self, group: CommitGroup) -> Sequence[Fact]:
        """Return the facts, or raise a `MinimqError` and leave no trace. Called last, on the writer's thread."""
        return ()

    def done(self) -> None:
        """Called on the event loop once the facts are on disk."""


@dataclass(slots=True, eq=False)
class OffsetsMoved(Progress):
    """The group has consumed messages of leased queues."""

    fact: OffsetsCommitted
    #: First offset that was consumed of each queue.
    begins: Sequence[int]

    has_fact = True

    def decide(self, group: CommitGroup) -> Sequence[Fact]:
        """Return the fact. Raises `Fenced` if the messages were consumed before."""
        group.check_not_consumed(self.fact, self.begins)
        return [self.fact]


@dataclass(slots=True, eq=False)
class AtomicJob(Job):
    """Batches for several queues, and the progress of a group: all are stored, or none."""

    #: Each has a sequence number. Their `done` is not called.
    batches: Sequence[AppendJob]
    progress: Progress = field(default_factory=Progress)
    #: Why nothing new may be stored now. An earlier attempt that was stored is still acknowledged.
    rejection: MinimqError | None = None

    to_sender = True

    @property
    def has_fact(self) -> bool:  # type: ignore[override]
        return self.progress.has_fact

    @property
    def fresh(self) -> bool:  # type: ignore[override]
        return self.progress.fresh

    @property
    def size(self) -> int:
        return sum(batch.size for batch in self.batches) + self.progress.size + 256

    def decide(self, group: CommitGroup) -> None:
        group.add_atomic(self)


@dataclass(slots=True, eq=False)
class FactJob(Job):
    """A fact to record.

    The writer calls `make` with the state after all earlier jobs. It returns the fact, or None if there is nothing to
    record; it raises a `MinimqError` to reject. If the fact does not depend on the state, `alone` is set to False, so
    that many share one sync.
    """

    make: Callable[[State], Fact | None]
    alone: bool = True
    fact: Fact | None = field(default=None, init=False)
    #: What the fact changes, if an administrator has to see it in the log.
    change: AdminChange | None = field(default=None, init=False)

    has_fact = True

    def decide(self, group: CommitGroup) -> None:
        self.fact = self.make(group.state)
        if self.fact is not None:
            self.change = change_of(group.state, self.fact)
            group.add(self.fact)


@dataclass(slots=True, eq=False)
class ReplicaJob(Job):
    """Entries of the master's log, to be appended unchanged to the log of a slave, which ends at `position`."""

    position: int
    entries: Sequence[bytes]

    replicates = True

    @property
    def size(self) -> int:
        return sum(map(len, self.entries))

    def decide(self, group: CommitGroup) -> None:
        group.add_entries(self)


@dataclass(slots=True, eq=False)
class Call:
    """Any other call for the writer's thread, made between two groups."""

    run: Callable[[], None]
    done: Future[None] = field(default_factory=Future)

    size = 0


#: Receives finished jobs, and the queues in which readers see new messages. Called on the writer's thread or, at a
#: master with slaves, on the thread that confirms the position.
Notify = Callable[[list[Job], Set[QueueKey]], None]


def groups_of(jobs: list[Job | Call]) -> list[list[Job] | Call]:
    """Split jobs into commit groups; calls stand between groups.

    A job with `alone` is the only one in its group. Jobs with `fresh` see each other's decisions and may share a group,
    but only without a fact before them.
    """
    groups: list[list[Job] | Call] = []
    group: list[Job] | None = None  # the group that the next job may join
    has_fact = False
    for job in jobs:
        if isinstance(job, Call):
            groups.append(job)
            group = None
            continue
        if group is None or job.alone or (has_fact and job.fresh):
            group, has_fact = [], False
            groups.append(group)
        group.append(job)
        has_fact = has_fact or job.has_fact
        if job.alone:
            group = None
    return groups
