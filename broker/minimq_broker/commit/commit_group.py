"""The entries that the writer commits in one transaction."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

from minimq_broker.commit.replica_features import ReplicaFeatures
from minimq_broker.features.feature import Append, Feature, IndexRow, OffsetKey, Scratch
from minimq_broker.features.registry import BY_FACT, BY_TAG, FEATURES, index_rows_of
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.disk import Disk
from minimq_broker.log.entry import batch_entry, fact_entry, held_batch, held_entry, released_entry
from minimq_broker.log.rows import Row
from minimq_broker.state.facts import Fact, FeatureUsed, OffsetsCommitted, Topic
from minimq_broker.state.producers import BatchLocation, PendingBatches
from minimq_broker.state.queue_ends import NO_MESSAGES, BatchHeld, HeldKey
from minimq_broker.state.state import BatchApplied, Effect, QueueEnd, QueueKey, State
from minimq_common.batch.header import Header, read_header
from minimq_common.errors import InvalidArgument, MinimqError, QueueNotFound
from minimq_common.model import Permission

_WRITE = int(Permission.WRITE)


class CommitGroup:
    """Collects the entries of one commit and assigns offsets, following those in the state."""

    def __init__(self, state: State, now_ms: int, *, log: CommitLog, disk: Disk, replicas: ReplicaFeatures) -> None:
        self.state = state
        self.now_ms = now_ms
        self.start = self.end = state.position
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
        #: Batches of producers that the group adds.
        self.pending = PendingBatches(state.producers)
        #: Offsets that the group commits.
        self._offsets: dict[tuple[str, int, int], int] = {}

    # ---- for jobs -----------------------------------------------------------------------------------

    @cached_property
    def rejection(self) -> MinimqError | None:
        """Why no new batch may be written now; facts may always be."""
        return self.disk.rejection()

    def append_batch(
        self,
        queue: QueueKey,
        data: bytes | memoryview,
        header: Header,
        *,
        user: int = 0,
        tag: int = 0,
        key: HeldKey | None = None,
    ) -> BatchLocation:
        """Add a batch at the end of its queue, with tag and key if it was held."""
        end = self.ends.get(queue) or self.state.ends.get(queue, NO_MESSAGES)
        stored_ms = max(self.now_ms, end.stored_ms)  # store times never go back, even if the clock was set back
        offset, count, position = end.offset, header.count, self.end
        place, end = BatchLocation(*queue, offset, stored_ms), QueueEnd(offset + count, stored_ms)
        if key is None:
            entry = batch_entry(queue, offset, stored_ms, data, user=user)
            numbers = producer_id, sequence, settled_before = header.producer_id, header.sequence, header.settled_before
            if producer_id:
                self.pending.add((producer_id, queue.topic_id, user), sequence, settled_before, place)
        else:
            entry, numbers = released_entry(tag, queue, offset, stored_ms, key, data), (0, 0, 0)
        size, born, hashes = len(entry), (header.born_first_ms, header.born_last_ms), header.tag_hashes
        self.entries.append((position, entry))
        self.rows.append((queue, Row(offset + count - 1, position, size, count, stored_ms, *born, hashes)))
        self.end = position + size
        self.messages += count
        self.ends[queue] = end
        self.effects.append((BatchApplied(queue, end, place, *numbers, user, tag, key), self.end, stored_ms))
        return place

    def queue_of(self, job: Append, topic: Topic) -> QueueKey:
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

    def scratch(self, name: str) -> Any:
        """Return the decisions of a feature within this commit."""
        found = self.scratches.get(name)
        if found is None:
            found = self.scratches[name] = FEATURES[name].scratch(self)
        return found

    def queue_end(self, queue: QueueKey) -> QueueEnd:
        """Return the end of a queue after the batches of this commit."""
        return self.ends.get(queue) or self.state.ends.get(queue, NO_MESSAGES)

    def offset(self, key: OffsetKey) -> int | None:
        """Return a committed offset after the commits of this group."""
        return self._offsets.get(key, self.state.committed.get(key))

    def held(self, job: Append, tag: int, queue: QueueKey, until_ms: int, note: bytes) -> BatchLocation:
        """Add a batch that the feature with this tag holds."""
        self.begin_feature(BY_TAG[tag])
        header, numbered = job.header, job.hold.numbered
        place = BatchLocation(*queue, self.end, self.now_ms, until_ms)
        entry = held_entry(tag, queue, self.now_ms, until_ms, note, job.data, numbered=numbered, user=job.user)
        numbers = (header.producer_id, header.sequence, header.settled_before) if numbered else (0, 0, 0)
        effect = BatchHeld(tag, note, place, header.count, *numbers, job.user)
        self.index_rows += index_rows_of(effect, self.end)
        self.append(entry, effect)
        if numbers[0]:
            self.pending.add((numbers[0], place.topic_id, job.user), *numbers[1:], place)
        return place

    def release(self, tag: int, key: HeldKey, entry: bytes) -> tuple[BatchHeld, BatchLocation]:
        """Add the batch in an entry to its queue, whose topic must exist. Raises `CorruptEntry` and adds nothing."""
        data, held = held_batch(entry, tag, key)
        topic = self.state.topics[self.state.topic_name(held.place.topic_id) or ""]
        # Write queues may have been removed since; the permission was checked when the batch was accepted.
        queue = QueueKey(topic.topic_id, held.place.queue_id % topic.write_queues)
        return held, self.append_batch(queue, data, read_header(data), tag=tag, key=key)

    def add(self, fact: Fact) -> None:
        if isinstance(fact, OffsetsCommitted):
            for item in fact.offsets:
                self._offsets[fact.group, item.topic_id, item.queue_id] = item.offset
        if (owner := BY_FACT.get(type(fact))) is not None:
            self.begin_feature(owner)
            self.index_rows += owner.index_rows(fact, self.end)
        self.append(fact_entry(fact, self.now_ms), fact)

    def check_feature(self, feature: Feature) -> None:
        """Raise `NotEnoughReplicas` if a replica could not read the first entry of a feature."""
        if self._is_new(feature):
            self._replicas.check(FeatureUsed(feature.name, feature.version))

    def begin_feature(self, feature: Feature) -> None:
        """Call this before adding entries of a feature, so that no broker without it reads one."""
        if self._is_new(feature):
            used = FeatureUsed(feature.name, feature.version)
            self._replicas.check(used)
            self._begun.add(feature.name)
            self.append(fact_entry(used, self.now_ms), used)

    def _is_new(self, feature: Feature) -> bool:
        return feature.name not in self._begun and self.state.features.get(feature.name) != feature.version

    # ---- entries ----------------------------------------------------------------------------------------

    def append(self, entry: bytes, effect: Effect) -> None:
        """Add an entry that is not a batch in a queue, and its effect."""
        self.entries.append((self.end, entry))
        self.end += len(entry)
        self.effects.append((effect, self.end, self.now_ms))


def _wrong_kind(topic: Topic) -> str:
    if topic.fifo:
        return f"topic {topic.name!r} is a FIFO topic: give each message a message group"
    return (
        f"topic {topic.name!r} is not a FIFO topic: send without a message group, or to a topic that was created with "
        "`minimq topic create NAME --fifo`"
    )
