"""The entries that the writer commits in one transaction."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from minimq_broker.commit.jobs import AppendJob, AppendStatus, AtomicJob, ReplicaJob
from minimq_broker.commit.replica_features import ReplicaFeatures
from minimq_broker.features.feature import Feature, IndexRow, OffsetKey, Scratch
from minimq_broker.features.registry import BY_FACT, BY_TAG, FEATURES, index_rows_of
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.disk import Disk
from minimq_broker.log.entry import (
    HEADER_BYTES,
    batch_entry,
    fact_entry,
    held_batch,
    held_entry,
    opened,
    released_entry,
)
from minimq_broker.log.rows import Row, row_of
from minimq_broker.state.facts import AtomicBegun, Fact, FeatureUsed, OffsetsCommitted, Topic
from minimq_broker.state.producers import BatchLocation, PendingBatches, Repeated
from minimq_broker.state.queue_ends import BatchHeld, HeldKey
from minimq_broker.state.state import BatchApplied, Effect, QueueEnd, QueueKey, State
from minimq_common.batch.header import Header, read_header
from minimq_common.errors import (
    CorruptEntry,
    Fenced,
    InvalidArgument,
    MinimqError,
    QueueNotFound,
    StaleSequence,
    StoreError,
)
from minimq_common.model import Permission

_EMPTY = QueueEnd()
_WRITE = int(Permission.WRITE)


class CommitGroup:
    """Collects the entries of one commit and assigns offsets, following those in the state."""

    def __init__(
        self, state: State, end: int, now_ms: int, *, log: CommitLog, disk: Disk, replicas: ReplicaFeatures
    ) -> None:
        self.state = state
        self.now_ms = now_ms
        self.start = self.end = end
        self.log, self.disk, self._replicas = log, disk, replicas
        #: Features that the group is the first to use.
        self._begun: set[str] = set()
        self.ends: dict[QueueKey, QueueEnd] = {}
        self.messages = 0
        self.entries: list[tuple[int, bytes]] = []
        self.rows: list[tuple[QueueKey, Row]] = []
        self.index_rows: list[IndexRow] = []
        #: The decisions of features, by name; only of those that take part.
        self.scratches: dict[str, Scratch] = {}
        self.effects: list[tuple[Effect, int, int]] = []
        self._pending = PendingBatches(state.producers)
        #: Offsets that the group commits.
        self._offsets: dict[tuple[str, int, int], int] = {}
        #: Why no new batch may be written now; facts may always be.
        self.rejection: MinimqError | None = disk.rejection()
        #: Jobs whose batches are on disk already, whatever happens to this group.
        self.stored: list[AppendJob] = []

    # ---- batches ------------------------------------------------------------------------------------

    def add_batch(self, job: AppendJob) -> None:
        """Assign a batch a place, or find its existing one."""
        topic = self.state.topics.get(job.topic) or self.state.topic(job.topic)
        header = job.header
        if job.key_queues is not None and job.key_queues != topic.key_queues:
            raise InvalidArgument(_wrong_key_queues(topic))
        hold = job.hold
        if header.producer_id and (hold is None or hold.numbered):
            repeated = self._pending.find((header.producer_id, topic.topic_id, job.user), header.sequence)
            if repeated is not None:
                self._repeat(job, repeated)
                return
        place = None if hold is None else self.scratch(hold.feature).hold(job, topic)
        if isinstance(place, Repeated):
            self._repeat(job, place)
            return
        _answer(job, place or self._append_batch(self.queue_of(job, topic), job), AppendStatus.OK)

    def _repeat(self, job: AppendJob, found: Repeated) -> None:
        _answer(job, found.place, AppendStatus.ALREADY_STORED)
        if found.applied:
            self.stored.append(job)

    def add_atomic(self, job: AtomicJob) -> None:
        """Assign all batches of a job their places and add its facts, or find the existing places."""
        topics = [self.state.topic(batch.topic) for batch in job.batches]
        if self._find_existing(job, topics):
            return
        if job.rejection is not None:
            raise job.rejection
        queues = [self.queue_of(batch, topic) for batch, topic in zip(job.batches, topics, strict=True)]
        self._begin_feature(FEATURES.get(job.progress.feature))  # now: the append has no other entries
        facts = job.progress.decide(self)  # last: after this decision the job can no longer be rejected
        if len(queues) + len(facts) > 1:
            size = sum(len(fact_entry(fact, self.now_ms)) for fact in facts)
            self.add(AtomicBegun(size + sum(HEADER_BYTES + len(batch.data) for batch in job.batches)))
        for queue, batch in zip(queues, job.batches, strict=True):
            _answer(batch, self._append_batch(queue, batch), AppendStatus.OK)
        for fact in facts:
            self.add(fact)

    def _find_existing(self, job: AtomicJob, topics: Sequence[Topic]) -> bool:
        found = [
            self._pending.find((batch.header.producer_id, topic.topic_id, batch.user), batch.header.sequence)
            for batch, topic in zip(job.batches, topics, strict=True)
        ]
        for batch, repeated in zip(job.batches, found, strict=True):
            if repeated is not None:
                _answer(batch, repeated.place, AppendStatus.ALREADY_STORED)
        if any(found) and None in found:
            raise StaleSequence("only some batches of the transaction are known: the others may be stored as well")
        return any(found)

    def check_not_consumed(self, fact: OffsetsCommitted, begins: Sequence[int]) -> None:
        """Raise `Fenced` if a group has consumed a queue beyond the offset where a commit begins."""
        for item, begin in zip(fact.offsets, begins, strict=True):
            key = (fact.group, item.topic_id, item.queue_id)
            committed = self._offsets.get(key, self.state.committed.get(key, 0))
            if committed > begin and not fact.forced:
                raise Fenced(
                    f"group {fact.group!r} has consumed queue {item.queue_id} up to offset {committed}, and the "
                    f"transaction is of messages from {begin} on: nothing of it is stored"
                )

    def _append_batch(self, queue: QueueKey, job: AppendJob) -> BatchLocation:
        header = job.header
        place = self.put(queue, job.data, header, user=job.user)
        numbers = header.producer_id, header.sequence, (settled_before := header.settled_before)
        effect = BatchApplied(queue, self.ends[queue], place, *numbers, job.user)
        self.effects.append((effect, self.end, place.stored_ms))
        if header.producer_id:
            self._pending.add((header.producer_id, place.topic_id, job.user), header.sequence, settled_before, place)
        return place

    def queue_of(self, job: AppendJob, topic: Topic) -> QueueKey:
        """Return the queue of a batch. Raises the reason if it may not be written."""
        if self.rejection is not None:
            raise copy.copy(self.rejection)  # a copy per job: an exception keeps a traceback
        if not int(topic.permission) & int(self.state.permission) & _WRITE:  # plain integers: flags cost ten times more
            self.state.check_allowed(topic, Permission.WRITE)
        if not 0 <= job.queue_id < topic.write_queues:
            raise QueueNotFound(
                f"topic {job.topic!r} has no queue {job.queue_id} to write to on this broker: "
                f"its queues are 0 to {topic.write_queues - 1}"
            )
        if topic.fifo is not bool(job.header.group_hash):
            raise InvalidArgument(_wrong_kind(topic))
        return QueueKey(topic.topic_id, job.queue_id)

    # ---- for features -------------------------------------------------------------------------------

    def scratch(self, name: str) -> Any:
        """Return the decisions of a feature within this commit."""
        found = self.scratches.get(name)
        if found is None:
            found = self.scratches[name] = FEATURES[name].scratch(self)
        return found

    def queue_end(self, queue: QueueKey) -> QueueEnd:
        """Return the end of a queue after the batches of this commit."""
        return self.ends.get(queue) or self.state.ends.get(queue, _EMPTY)

    def offset(self, key: OffsetKey) -> int | None:
        """Return a committed offset after the commits of this group."""
        return self._offsets.get(key, self.state.committed.get(key))

    def held(self, job: AppendJob, tag: int, queue: QueueKey, until_ms: int, note: bytes) -> BatchLocation:
        """Add a batch that the feature with this tag holds."""
        self._begin_feature(BY_TAG[tag])
        header, numbered = job.header, job.hold.numbered
        place = BatchLocation(*queue, self.end, self.now_ms, until_ms)
        entry = held_entry(tag, queue, self.now_ms, until_ms, note, job.data, numbered=numbered, user=job.user)
        numbers = (header.producer_id, header.sequence, header.settled_before) if numbered else (0, 0, 0)
        effect = BatchHeld(tag, note, place, header.count, *numbers, job.user)
        self.index_rows += index_rows_of(effect, self.end)
        self.append(entry, effect)
        if numbers[0]:
            self._pending.add((numbers[0], place.topic_id, job.user), *numbers[1:], place)
        return place

    def release(self, tag: int, key: HeldKey, entry: bytes) -> tuple[BatchHeld, BatchLocation]:
        """Add the batch in an entry to its queue, whose topic must exist. Raises `CorruptEntry` and adds nothing."""
        data, held = held_batch(entry, tag, key)
        topic = self.state.topics[self.state.topic_name(held.place.topic_id) or ""]
        # Write queues may have been removed since; the permission was checked when the batch was accepted.
        queue = QueueKey(topic.topic_id, held.place.queue_id % topic.write_queues)
        place = self.put(queue, data, read_header(data), key, tag=tag)
        effect = BatchApplied(queue, self.ends[queue], place, released_by=tag, released=key)
        self.effects.append((effect, self.end, place.stored_ms))
        return held, place

    # ---- replicas -----------------------------------------------------------------------------------

    def add_entries(self, job: ReplicaJob) -> None:
        """Add entries of the master, unchanged."""
        if job.position != self.end:
            raise StoreError(f"entries of position {job.position} cannot follow on a log that ends at {self.end}")
        at = job.position
        ends = dict(self.ends)
        rows, effects, index_rows = [], [], list[IndexRow]()
        whole_from = at
        for data in job.entries:
            entry = opened(data, at)
            if isinstance(entry.effect, AtomicBegun):
                whole_from = max(whole_from, at + len(data) + entry.effect.size)
            if isinstance(entry.effect, BatchApplied):
                queue, base_offset = entry.effect.queue, entry.header.base_offset
                expected = (ends.get(queue) or self.state.end(queue)).offset
                if base_offset != expected:
                    raise CorruptEntry(
                        f"the entry at position {at} goes on at offset {base_offset} of queue {queue}, "
                        f"which ends at {expected}: the logs are not the same"
                    )
                ends[queue] = entry.effect.end
            if entry.about is not None:
                rows.append((entry.header.queue, row_of(entry.header, entry.about, at, len(data))))
            at += len(data)
            effects.append((entry.effect, at, entry.header.stored_ms))
            index_rows += index_rows_of(entry.effect, at - len(data))
        if at < whole_from:
            raise CorruptEntry(f"the entries up to position {at} cut an atomic append, which ends at {whole_from}")
        for data in job.entries:
            self.entries.append((self.end, data))
            self.end += len(data)
        self.rows += rows
        self.index_rows += index_rows
        self.messages += sum(row.count for _, row in rows)
        self.effects += effects
        self.ends = ends

    def add(self, fact: Fact) -> None:
        if isinstance(fact, OffsetsCommitted):
            for item in fact.offsets:
                self._offsets[fact.group, item.topic_id, item.queue_id] = item.offset
        if (owner := BY_FACT.get(type(fact))) is not None:
            if self.state.features.get(owner.name) != owner.version:
                self._begin_feature(owner)
            self.index_rows += owner.index_rows(fact, self.end)
        self.append(fact_entry(fact, self.now_ms), fact)

    def _begin_feature(self, feature: Feature | None) -> None:
        # Before its first entry, so that no broker without it reads one.
        if feature is None or feature.name in self._begun or self.state.features.get(feature.name) == feature.version:
            return
        used = FeatureUsed(feature.name, feature.version)
        self._replicas.check(used)
        self._begun.add(feature.name)
        self.append(fact_entry(used, self.now_ms), used)

    # ---- entries ------------------------------------------------------------------------------------

    def put(
        self,
        queue: QueueKey,
        data: bytes | memoryview,
        header: Header,
        key: HeldKey | None = None,
        *,
        tag: int = 0,
        user: int = 0,
    ) -> BatchLocation:
        """Add a batch at the end of its queue, with tag and key if it was held. The caller adds the effect."""
        end = self.ends.get(queue) or self.state.ends.get(queue, _EMPTY)
        stored_ms = max(self.now_ms, end.stored_ms)  # store times never go back, even if the clock was set back
        offset, count, position = end.offset, header.count, self.end
        if key is None:
            entry = batch_entry(queue, offset, stored_ms, data, user=user)
        else:
            entry = released_entry(tag, queue, offset, stored_ms, key, data)
        size, born, hashes = len(entry), (header.born_first_ms, header.born_last_ms), header.tag_hashes
        self.entries.append((position, entry))
        self.end = position + size
        self.rows.append((queue, Row(offset + count - 1, position, size, count, stored_ms, *born, hashes)))
        self.messages += count
        self.ends[queue] = QueueEnd(offset + count, stored_ms)
        return BatchLocation(*queue, offset, stored_ms)

    def append(self, entry: bytes, effect: Effect) -> None:
        """Add an entry that is not a batch in a queue, and its effect."""
        self.entries.append((self.end, entry))
        self.end += len(entry)
        self.effects.append((effect, self.end, self.now_ms))


def _answer(job: AppendJob, place: BatchLocation, status: AppendStatus) -> None:
    job.status, job.stored_queue_id = status, place.queue_id
    job.base_offset, job.stored_ms = place.base_offset, place.stored_ms
    if place.held_until_ms:
        job.base_offset, job.held = -1, HeldKey(place.held_until_ms, place.base_offset)


def _wrong_kind(topic: Topic) -> str:
    if topic.fifo:
        return f"topic {topic.name!r} is a FIFO topic: give each message a message group"
    return (
        f"topic {topic.name!r} is not a FIFO topic: send without a message group, or to a topic that was created with "
        "`minimq topic create NAME --fifo`"
    )


def _wrong_key_queues(topic: Topic) -> str:
    if not topic.key_queues:
        return f"keys of topic {topic.name!r} have no queues any more: it was deleted and created again"
    return (
        f"each key of topic {topic.name!r} belongs to one of its {topic.key_queues} queues: send with Producer or "
        "minimq produce"
    )
