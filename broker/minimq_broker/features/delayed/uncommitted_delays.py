"""Decisions about delayed batches within one commit group."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from minimq_broker.commit.jobs import MAX_RELEASED, MAX_RELEASED_BYTES, AppendJob, DueJob, RecallJob
from minimq_broker.features.delayed.due_index import DueIndex, batch_in
from minimq_broker.features.delayed.due_table import DueRow
from minimq_broker.features.delayed.table import (
    MAX_DELAY_MS,
    NAME,
    BatchDelayed,
    BatchesRecalled,
    Delay,
    DelaysSetBack,
    DelayTable,
    DueSkipped,
    RecalledEntry,
    RecallOutcome,
)
from minimq_broker.log.disk import Disk
from minimq_broker.log.disk_levels import DiskLevel
from minimq_broker.log.entry import delayed_batch, delayed_entry
from minimq_broker.state.facts import Topic
from minimq_broker.state.producers import BatchLocation
from minimq_broker.state.queue_ends import HeldKey, QueueKey
from minimq_common.errors import AccessDenied, CorruptEntry, InvalidArgument, MinimqError, StoreFull

if TYPE_CHECKING:
    from minimq_broker.commit.commit_group import CommitGroup

log = logging.getLogger(__name__)


#: Rows that one job examines; most may be of recalled batches or deleted topics.
_LOOKED_AT = 10_000
_DAY_MS = 86_400_000
#: If the clock was set back, a new batch may be due before the mark. Up to this difference it becomes due right after
#: the mark; beyond it, the mark is set back.
_MAX_LATE_MS = 1_000


def delay_rejection(disk: Disk, index: DueIndex, mark: HeldKey) -> StoreFull | None:
    """Return why no batch may be delayed now, or None: the disk fills up while waiting batches pin the oldest data."""
    use, level = disk.latest
    if level < DiskLevel.DELETE_EARLY or not index.keeps_first(mark):
        return None
    return StoreFull(
        f"the disk of the broker is {use.ratio:.1%} full, and delayed messages keep its oldest data: no more are "
        "accepted until some are due: send without a delay, or give the broker a larger disk"
    )


class UncommittedDelays:
    def __init__(self, group: CommitGroup, rejection: Callable[[], MinimqError | None]) -> None:
        self._group, self._state, self._rejection = group, group.state, rejection
        #: The mark after the publications of the group.
        table: DelayTable = group.state.tables[NAME]
        self._published = table.published
        self._recalled: set[HeldKey] = set()

    # ---- storing ------------------------------------------------------------------------------------

    def check(self, job: AppendJob, topic: Topic) -> None:
        """Raise `InvalidArgument` if the delayed batch is in a transaction or of a FIFO topic."""
        if job.transaction is not None:
            raise InvalidArgument("a message of a transaction cannot be delayed: send it by itself, or without a delay")
        if topic.fifo:
            raise InvalidArgument(
                f"topic {topic.name!r} is a FIFO topic, whose messages keep their order: they cannot be delayed"
            )

    def due_ms(self, delay: Delay) -> int | None:
        """Return when a batch is due, in ms since 1970; None if it is due now."""
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

    def put(self, job: AppendJob, queue: QueueKey, due_ms: int, *, is_recallable: bool) -> BatchLocation:
        if (rejection := self._rejection()) is not None:
            raise rejection
        header, now_ms = job.header, self._group.now_ms
        if due_ms <= self._published.due_ms:  # the clock was set back, or that of an earlier master was ahead
            fact = DelaysSetBack(now_ms, self._group.end)
            self._group.add(fact)
            self._published = self._published.set_back(fact)
        key = HeldKey(due_ms, self._group.end)
        place = BatchLocation(*queue, key.position, now_ms, due_ms)
        numbers = header.producer_id, header.sequence, header.settled_before
        entry = delayed_entry(queue, now_ms, due_ms, job.data, is_recallable=is_recallable, user=job.user)
        self._group.append(entry, BatchDelayed(key, header.count, place, is_recallable, *numbers, job.user))
        return place

    # ---- publishing ---------------------------------------------------------------------------------

    def publish(self, job: DueJob, index: DueIndex) -> None:
        """Publish the next batches that are due; skip those that were recalled, dropped or lost."""
        size = 0
        recalled = passed = None
        for looked, (row, segment) in enumerate(index.walk(self._published.key, self._group.now_ms + 1)):
            key = row.due
            if row.is_recall:
                recalled = passed = key  # the segment of its batch may already be deleted
                continue
            if job.published >= MAX_RELEASED or size >= MAX_RELEASED_BYTES or looked >= _LOOKED_AT:
                job.has_more = True
                break
            passed = key
            if self._published.covers(key):
                continue
            if key == recalled or key in self._recalled:
                job.recalled += 1
                continue
            batch = batch_in(segment, key)
            if batch is not None and self._state.topic_name(batch.place.topic_id) is None:
                job.dropped += 1
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
            data, delayed = delayed_batch(entry, key)
        except CorruptEntry as error:
            log.error("store: a delayed batch is lost due=%d id=%d error=%s", *key, error.message)
            job.lost += 1
            topic_id, messages = row.counted
            self._skip(DueSkipped(*key, *((topic_id, messages) if self._state.topic_name(topic_id) else ())))
            return
        topic = self._state.topics[self._state.topic_name(delayed.place.topic_id) or ""]  # exists: `publish` checked
        place = self._group.release(topic, delayed.place.queue_id, data, key)
        self._published = self._published.moved(key)
        job.messages += delayed.messages
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

    def _outcome(self, key: HeldKey, topic_id: int, batch: BatchDelayed | None, index: DueIndex) -> RecallOutcome:
        if batch is not None and batch.place.topic_id != topic_id:
            return RecallOutcome.TOO_LATE
        if key in self._recalled or index.recall_of(key, self._published.key) is not None:
            return RecallOutcome.ALREADY_RECALLED
        if batch is None or self._published.covers(key):
            return RecallOutcome.TOO_LATE
        return RecallOutcome.RECALLED if batch.is_recallable else RecallOutcome.NOT_RECALLABLE
