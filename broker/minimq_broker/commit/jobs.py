"""Jobs for the writer, which sets a result or an error in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from minimq_broker.commit.changes import AdminChange, change_of
from minimq_broker.commit.commit_group import CommitGroup
from minimq_broker.features.feature import IndexRow
from minimq_broker.features.registry import FEATURES, check_held, index_rows_of
from minimq_broker.log.entry import HEADER_BYTES, fact_entry, opened
from minimq_broker.log.rows import row_of
from minimq_broker.state.facts import AtomicBegun, Fact, OffsetsCommitted, Topic
from minimq_broker.state.producers import BatchLocation, Repeated
from minimq_broker.state.queue_ends import BatchApplied, BatchHeld, HeldKey
from minimq_broker.state.state import QueueKey, State
from minimq_common.batch.header import Header
from minimq_common.errors import CorruptEntry, Fenced, InvalidArgument, MinimqError, StaleSequence, StoreError

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


_NOWHERE = BatchLocation(0, -1, -1, 0)


class AppendStatus(IntEnum):
    #: The batch is on disk.
    OK = 0
    #: An earlier attempt stored the batch; it was not written again.
    ALREADY_STORED = 1


@dataclass(slots=True, eq=False)
class AppendJob(Job):
    """A batch for a queue: to be appended, or held by a feature.

    Results: where the batch is stored, which may be another queue if an earlier attempt went there.
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
    place: BatchLocation = field(default=_NOWHERE, init=False)

    to_sender = True

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def held(self) -> HeldKey | None:
        """Identifies the batch if it is held until a time."""
        place = self.place
        return HeldKey(place.held_until_ms, place.base_offset) if place.held_until_ms else None

    def decide(self, group: CommitGroup) -> None:
        """Assign the batch a place, or find its existing one."""
        topic = group.state.topics.get(self.topic) or group.state.topic(self.topic)
        header, hold = self.header, self.hold
        if self.key_queues is not None and self.key_queues != topic.key_queues:
            raise InvalidArgument(_wrong_key_queues(topic))
        if header.producer_id and (hold is None or hold.numbered):
            known = group.pending.find((header.producer_id, topic.topic_id, self.user), header.sequence)
            if known is not None:
                self.place, self.status = known, AppendStatus.ALREADY_STORED
                return
        place = None if hold is None else group.scratch(hold.feature).hold(self, topic)
        if isinstance(place, Repeated):
            self.place, self.status = place.place, AppendStatus.ALREADY_STORED
        else:
            self.place = place or group.append_batch(group.queue_of(self, topic), self.data, header, user=self.user)


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
        for item, begin in zip(self.fact.offsets, self.begins, strict=True):
            committed = group.offset((self.fact.group, item.topic_id, item.queue_id)) or 0
            if committed > begin and not self.fact.forced:
                raise Fenced(
                    f"group {self.fact.group!r} has consumed queue {item.queue_id} up to offset {committed}, and the "
                    f"transaction is of messages from {begin} on: nothing of it is stored"
                )
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
        """Assign all batches their places and add the facts, or find the existing places."""
        topics = [group.state.topic(batch.topic) for batch in self.batches]
        if self._find_existing(group, topics):
            return
        if self.rejection is not None:
            raise self.rejection
        queues = [group.queue_of(batch, topic) for batch, topic in zip(self.batches, topics, strict=True)]
        feature = FEATURES.get(self.progress.feature)
        if feature is not None:
            group.check_feature(feature)
        facts = self.progress.decide(group)  # last: after this decision the job can no longer be rejected
        if feature is not None:
            group.begin_feature(feature)  # now: the append has no other entries
        if len(queues) + len(facts) > 1:
            size = sum(len(fact_entry(fact, group.now_ms)) for fact in facts)
            group.add(AtomicBegun(size + sum(HEADER_BYTES + len(batch.data) for batch in self.batches)))
        for queue, batch in zip(queues, self.batches, strict=True):
            batch.place = group.append_batch(queue, batch.data, batch.header, user=batch.user)
        for fact in facts:
            group.add(fact)

    def _find_existing(self, group: CommitGroup, topics: Sequence[Topic]) -> bool:
        found = [
            group.pending.find((batch.header.producer_id, topic.topic_id, batch.user), batch.header.sequence)
            for batch, topic in zip(self.batches, topics, strict=True)
        ]
        for batch, place in zip(self.batches, found, strict=True):
            if place is not None:
                batch.place, batch.status = place, AppendStatus.ALREADY_STORED
        if any(found) and None in found:
            raise StaleSequence("only some batches of the transaction are known: the others may be stored as well")
        return any(found)


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
        """Add the entries. Raises `StoreError` if one cannot follow, or cannot be read by this broker."""
        if self.position != group.end:
            raise StoreError(f"entries of position {self.position} cannot follow on a log that ends at {group.end}")
        at = whole_from = self.position
        ends = dict(group.ends)
        entries, rows, effects, index_rows = [], [], [], list[IndexRow]()
        for data in self.entries:
            header, about, effect = opened(data, at)
            if isinstance(effect, AtomicBegun):
                whole_from = max(whole_from, at + len(data) + effect.size)
            elif isinstance(effect, BatchHeld):
                check_held(effect, at)
            elif isinstance(effect, BatchApplied):
                expected = (ends.get(effect.queue) or group.state.end(effect.queue)).offset
                if header.base_offset != expected:
                    raise CorruptEntry(
                        f"the entry at position {at} goes on at offset {header.base_offset} of queue {effect.queue}, "
                        f"which ends at {expected}: the logs are not the same"
                    )
                ends[effect.queue] = effect.end
            if about is not None:
                rows.append((header.queue, row_of(header, about, at, len(data))))
            index_rows += index_rows_of(effect, at)
            entries.append((at, data))
            at += len(data)
            effects.append((effect, at, header.stored_ms))
        if at < whole_from:
            raise CorruptEntry(f"the entries up to position {at} cut an atomic append, which ends at {whole_from}")
        group.entries += entries
        group.end = at
        group.rows += rows
        group.index_rows += index_rows
        group.messages += sum(row.count for _, row in rows)
        group.effects += effects
        group.ends = ends


@dataclass(slots=True, eq=False)
class Call(Job):
    """Any other call for the writer's thread, made between two groups."""

    run: Callable[[], None]
    answer: Future[None] = field(default_factory=Future)

    alone = True


#: Receives finished jobs, and the queues in which readers see new messages. Called on the writer's thread or, at a
#: master with slaves, on the thread that confirms the position.
Notify = Callable[[list[Job], Set[QueueKey]], None]


def _wrong_key_queues(topic: Topic) -> str:
    if not topic.key_queues:
        return f"keys of topic {topic.name!r} have no queues any more: it was deleted and created again"
    return (
        f"each key of topic {topic.name!r} belongs to one of its {topic.key_queues} queues: send with Producer or "
        "minimq produce"
    )
