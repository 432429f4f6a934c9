"""The jobs of delayed messages, and their decisions within one commit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from minimq_broker.commit.jobs import MAX_RELEASED, MAX_RELEASED_BYTES, Job
from minimq_broker.features.delayed.due_index import DueIndex, batch_in
from minimq_broker.features.delayed.due_rows import DueRow
from minimq_broker.features.delayed.table import (
    MAX_DELAY_MS,
    NAME,
    TAG,
    BatchesRecalled,
    Delay,
    DelaysSetBack,
    DelayTable,
    DueSkipped,
    RecalledEntry,
    RecallOutcome,
    is_recallable,
    note_of,
)
from minimq_broker.features.feature import Append, Group, Scratch
from minimq_broker.log.disk_levels import DiskLevel
from minimq_broker.state.facts import Topic
from minimq_broker.state.producers import BatchLocation
from minimq_broker.state.queue_ends import BatchHeld, HeldKey
from minimq_common.errors import AccessDenied, CorruptEntry, InvalidArgument, StoreFull

log = logging.getLogger(__name__)


#: Rows that one job examines; most may be of recalled batches or deleted topics.
_LOOKED_AT = 10_000
_DAY_MS = 86_400_000
#: If the clock was set back, a new batch may be due before the mark. Up to this difference it becomes due right after
#: the mark; beyond it, the mark is set back.
_MAX_LATE_MS = 1_000


@dataclass(slots=True, eq=False)
class DueJob(Job):
    """Publishes the next delayed batches that are due by the writer's clock, as many as fit into one commit."""

    #: Published messages.
    messages: int = field(default=0, init=False)
    #: Delay of each published batch beyond its due time.
    late_ms: list[int] = field(default_factory=list, init=False)
    #: Damaged batches, which were skipped.
    lost: int = field(default=0, init=False)
    has_more: bool = field(default=False, init=False)

    @property
    def published(self) -> int:
        return len(self.late_ms)

    def decide(self, group: Group) -> None:
        group.scratch(NAME).publish(self, DueIndex(group.log))


@dataclass(slots=True, eq=False)
class RecallJob(Job):
    topic: str
    keys: Sequence[HeldKey]
    #: Tag of the only user whose batches may be recalled; None for all.
    user: int | None = None
    #: In the order of `keys`.
    outcomes: list[RecallOutcome] = field(default_factory=list, init=False)

    @property
    def size(self) -> int:
        return 256 + 64 * len(self.keys)

    def decide(self, group: Group) -> None:
        """Recall the batches. Raises `TopicNotFound`."""
        group.scratch(NAME).recall(self, DueIndex(group.log))


class UncommittedDelays(Scratch):
    """The decisions of one commit about delayed batches."""

    def __init__(self, group: Group) -> None:
        self._group, self._state = group, group.state
        self._table: DelayTable = group.state.tables[NAME]
        #: The mark after the publications of the group.
        self._published = self._table.published
        self._recalled: set[HeldKey] = set()

    # ---- storing ------------------------------------------------------------------------------------

    def hold(self, job: Append, topic: Topic) -> BatchLocation | None:
        """Raises `InvalidArgument`, `StoreFull`."""
        if topic.fifo:
            raise InvalidArgument(
                f"topic {topic.name!r} is a FIFO topic, whose messages keep their order: they cannot be delayed"
            )
        group, due_ms = self._group, self._due_ms(job.hold)
        if due_ms is None:
            return None
        queue = group.queue_of(job, topic)
        self._check_disk()
        if due_ms <= self._published.due_ms:  # the clock was set back, or that of an earlier master was ahead
            fact = DelaysSetBack(group.now_ms, group.end)
            group.add(fact)
            self._published = self._published.set_back(fact)
        return group.held(job, TAG, queue, due_ms, note_of(job.hold))

    def _due_ms(self, delay: Delay) -> int | None:
        now_ms = self._group.now_ms
        due_ms = now_ms + delay.delay_ms if delay.due_ms is None else delay.due_ms
        if due_ms > now_ms + MAX_DELAY_MS:
            raise InvalidArgument(
                f"a message may be delayed by {MAX_DELAY_MS / _DAY_MS:g} days at most, not by "
                f"{(due_ms - now_ms) / _DAY_MS:.1f}"
            )
        if due_ms <= now_ms:
            return None
        ahead_ms = self._published.due_ms - due_ms
        return self._published.due_ms + 1 if 0 <= ahead_ms <= _MAX_LATE_MS else due_ms

    def _check_disk(self) -> None:
        # The disk fills up while waiting batches pin the oldest data.
        use, level = self._group.disk.latest
        if level >= DiskLevel.DELETE_EARLY and DueIndex(self._group.log).keeps_first(self._table.saved_mark):
            raise StoreFull(
                f"the disk of the broker is {use.ratio:.1%} full, and delayed messages keep its oldest data: no more "
                "are accepted until some are due: send without a delay, or give the broker a larger disk"
            )

    # ---- publishing ---------------------------------------------------------------------------------

    def publish(self, job: DueJob, index: DueIndex) -> None:
        """Publish the next batches that are due; skip those that were recalled, dropped or lost."""
        size = 0
        recalled = passed = None
        for looked, (row, segment) in enumerate(index.walk(self._published.key, self._group.now_ms + 1)):
            key = row.due
            if not row.is_wait:
                recalled = passed = key  # the segment of its batch may already be deleted
                continue
            if job.published >= MAX_RELEASED or size >= MAX_RELEASED_BYTES or looked >= _LOOKED_AT:
                job.has_more = True
                break
            passed = key
            if self._published.covers(key):
                continue
            if key == recalled or key in self._recalled:
                continue
            batch = batch_in(segment, key)
            if batch is not None and self._state.topic_name(batch.place.topic_id) is None:
                continue
            entry = segment.entry_at(key.position) or b""
            self._publish(job, row, entry)
            size += len(entry)
            passed = None
        if passed is not None:
            self._skip(DueSkipped(*passed))

    def _publish(self, job: DueJob, row: DueRow, entry: bytes) -> None:
        key = row.due
        try:
            held, place = self._group.release(TAG, key, entry)
        except CorruptEntry as error:
            log.error("store: a delayed batch is lost due=%d id=%d error=%s", *key, error.message)
            job.lost += 1
            topic_id, messages = row.counted
            self._skip(DueSkipped(*key, *((topic_id, messages) if self._state.topic_name(topic_id) else ())))
            return
        self._published = self._published.moved(key)
        job.messages += held.messages
        job.late_ms.append(place.stored_ms - key.until_ms)

    def _skip(self, fact: DueSkipped) -> None:
        self._group.add(fact)
        self._published = self._published.moved(HeldKey(fact.due_ms, fact.id))

    # ---- recalling ----------------------------------------------------------------------------------

    def recall(self, job: RecallJob, index: DueIndex) -> None:
        """Recall the waiting batches of a job. Raises `TopicNotFound`, `AccessDenied`."""
        topic_id = self._state.topic(job.topic).topic_id
        found: list[RecalledEntry] = []
        batches = [index.find(key) for key in job.keys]
        if job.user is not None and any(batch is not None and batch.user != job.user for batch in batches):
            raise AccessDenied(
                f"another user sent this message to topic {job.topic!r}: only its sender, or a user who may manage "
                "the topic, may recall it"
            )
        for key, batch in zip(job.keys, batches, strict=True):
            outcome = self._outcome(key, topic_id, batch, index)
            job.outcomes.append(outcome)
            if outcome is RecallOutcome.RECALLED and batch is not None:
                found.append(RecalledEntry(*key, batch.messages))
                self._recalled.add(key)
        if found:
            self._group.add(BatchesRecalled(topic_id, tuple(found)))

    def _outcome(self, key: HeldKey, topic_id: int, batch: BatchHeld | None, index: DueIndex) -> RecallOutcome:
        if batch is not None and batch.place.topic_id != topic_id:
            return RecallOutcome.TOO_LATE
        if key in self._recalled or index.recall_of(key, self._published.key) is not None:
            return RecallOutcome.ALREADY_RECALLED
        if batch is None or self._published.covers(key):
            return RecallOutcome.TOO_LATE
        return RecallOutcome.RECALLED if is_recallable(batch) else RecallOutcome.NOT_RECALLABLE
