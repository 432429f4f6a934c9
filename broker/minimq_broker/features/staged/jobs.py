"""The jobs that end transactions and publish batches, and all decisions about staged batches within one commit."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from minimq_broker.commit.jobs import MAX_RELEASED, MAX_RELEASED_BYTES, Job
from minimq_broker.features.feature import Append, Group, Scratch
from minimq_broker.features.staged.facts import HalfEnded, PublicationSkipped, TransactionDecided
from minimq_broker.features.staged.staged_table import StagedTable
from minimq_broker.features.staged.staging import (
    NAME,
    TAG,
    HalfOutcome,
    Staged,
    StagedEntry,
    StagingLimits,
    TransactionId,
    check_room,
    note_of,
    staged_in,
)
from minimq_broker.log.entry import effect
from minimq_broker.state.facts import Topic
from minimq_broker.state.producers import BatchLocation, Repeated
from minimq_broker.state.queue_ends import BatchHeld, HeldKey
from minimq_common.errors import CorruptEntry, InvalidArgument, TransactionExpired

#: Offset in the answer about a batch that has none yet.
_HIDDEN = -1

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PublishJob(Job):
    """Publishes the next batches of a name, as many as fit into one commit."""

    name: str
    #: Number of batches published or skipped.
    published: int = field(default=0, init=False)
    #: Some committed batches are still to be published.
    has_more: bool = field(default=False, init=False)

    alone = True
    to_sender = True

    def decide(self, group: Group) -> None:
        """Publish the next batches. Raises `StoreFull` if the disk is nearly full."""
        group.scratch(NAME).publish(self)
        if self.has_more and group.rejection is not None:
            raise copy.copy(group.rejection)


@dataclass(slots=True, eq=False)
class DecideJob(PublishJob):
    """Decides a transaction. Its batches follow in another commit: on a full disk, the decision may still fit."""

    fact: TransactionDecided
    #: For the error text.
    broker_name: str

    def decide(self, group: Group) -> None:
        """Raises `TransactionExpired` if some of its batches are not staged."""
        self.has_more = group.scratch(NAME).decide(self.fact, self.broker_name)


@dataclass(slots=True, eq=False)
class EndJob(PublishJob):
    """Ends a transaction with half messages, and publishes the first of its batches if it is committed."""

    number: int
    wanted: HalfOutcome
    #: Number of batches that the producer has staged; 0 if the request is from anyone else.
    batches: int = 0
    #: The final outcome; None if the transaction is unknown.
    stands: HalfOutcome | None = field(default=None, init=False)
    is_new: bool = field(default=False, init=False)

    alone = False

    def decide(self, group: Group) -> None:
        group.scratch(NAME).end_half(self)
        group.scratch(NAME).publish(self)


class UncommittedStages(Scratch):
    """The decisions of one commit about staged batches."""

    def __init__(self, group: Group) -> None:
        self._group, self._state = group, group.state
        self._table: StagedTable = group.state.tables[NAME]
        # Half of the disk, because publishing writes staged batches a second time.
        self._limits = StagingLimits(size=group.disk.total_bytes // 2)
        #: What the commit adds to the table.
        self._new = StagedTable()
        #: Batches to be published, after the decisions and publications of the commit.
        self._waiting: dict[str, deque[StagedEntry]] = {}
        self._published = self._published_bytes = 0

    def hold(self, job: Append, topic: Topic) -> BatchLocation | Repeated:
        transaction, header = job.hold.transaction, job.header
        producer_id, sequence = header.producer_id, header.sequence
        if not producer_id:
            raise InvalidArgument("a batch without a number cannot be staged: no decision could name it")
        stored, new = (each.stages(transaction.name) for each in (self._table, self._new))
        for stages in (stored, new):
            stages.check_open(transaction, producer_id)
        if found := stored.find(transaction, producer_id, sequence) or new.find(transaction, producer_id, sequence):
            if found.topic_id != topic.topic_id:
                raise InvalidArgument(
                    f"batch {sequence} of producer {producer_id:016x} is stored in another topic already, not in "
                    f"{topic.name!r}: a new batch needs a new number"
                )
            return Repeated(BatchLocation(found.topic_id, found.queue_id, _HIDDEN, found.stored_ms))
        queue, size = self._group.queue_of(job, topic), len(job.data)
        is_new = producer_id not in stored.parts(transaction) and producer_id not in new.parts(transaction)
        more = Staged(1, size, int(is_new))
        check_room(self._limits, (self._table.room, self._new.room), transaction.name, producer_id, more)
        place = self._group.held(job, TAG, queue, 0, note_of(transaction, header, size))
        new.stage(transaction, StagedEntry(place.base_offset, size, *queue, place.stored_ms, producer_id, sequence))
        return BatchLocation(*queue, _HIDDEN, place.stored_ms)

    # ---- ends ----------------------------------------------------------------------------------------

    def decide(self, fact: TransactionDecided, broker_name: str) -> bool:
        """Decide a transaction, and return whether batches of its name are to be published. See `DecideJob`."""
        stored, decision = self._table.transactions, self._table.transactions.decision(fact.name)
        if decision is not None and fact.number <= decision.result:
            return bool(self._wait(fact.name))
        batches = stored.named(fact)
        if missing := batches.count(None):
            raise TransactionExpired(
                f"broker {broker_name} has dropped {missing} of the batches of transaction {fact.number} of "
                f"{fact.name!r} and publishes nothing of it: they were staged too long ago (--transaction-expiry), or "
                "their topic is gone; unless another broker has published its part, send the transaction again under "
                "a later number"
            )
        self._group.add(fact)
        return bool(self._wait(fact.name, filter(None, batches)))

    def end_half(self, job: EndJob) -> None:
        """End a transaction with half messages, or find its outcome."""
        transaction = TransactionId(job.name, job.number)
        stored, new = self._table.halves, self._new.halves
        job.stands = stored.outcome(transaction) or new.outcome(transaction)
        batches = stored.batches(transaction)
        there = len(batches) + len(new.batches(transaction))
        if job.stands is not None or not (there or job.batches):
            return
        is_whole = there == (job.batches or there)
        job.stands = HalfOutcome.EXPIRED if job.wanted is HalfOutcome.COMMITTED and not is_whole else job.wanted
        job.is_new = True
        fact = HalfEnded(*transaction, job.stands)
        self._group.add(fact)
        batches += new.end(fact, self._group.end)
        if job.stands is HalfOutcome.COMMITTED:
            self._wait(job.name, batches)

    # ---- publication ---------------------------------------------------------------------------------

    def publish(self, job: PublishJob) -> None:
        """Publish the next batches of a name in their order, unless no batch may be written now.

        Skips unreadable batches: otherwise the rest, and all later transactions of the name, would wait forever.
        """
        waiting, lost = self._wait(job.name), list[tuple[StagedEntry, str]]()
        while waiting and self._may_publish(waiting[0]):
            batch = waiting.popleft()
            try:
                entry = self._group.log.entry_at(batch.position)
                self._group.release(TAG, held_key(entry, job.name, batch), entry)
            except CorruptEntry as error:
                self._group.add(PublicationSkipped(batch.position))
                lost.append((batch, error.message))
            self._published += 1
            self._published_bytes += batch.size
            job.published += 1
        job.has_more = bool(waiting)
        if lost:
            self._log_lost(job.name, lost)

    def _may_publish(self, batch: StagedEntry) -> bool:
        if self._published >= MAX_RELEASED or self._published_bytes >= MAX_RELEASED_BYTES:
            return False
        return self._group.rejection is None and batch.position < self._state.position  # later ones cannot be read yet

    def _wait(self, name: str, more: Iterable[StagedEntry] = ()) -> deque[StagedEntry]:
        if name not in self._waiting:
            self._waiting[name] = deque(self._table.unpublished.of(name))
        self._waiting[name].extend(more)
        return self._waiting[name]

    def _log_lost(self, name: str, lost: list[tuple[StagedEntry, str]]) -> None:
        batch, reason = lost[0]
        log.error(
            "staged: messages of a committed transaction are lost, its others are published name=%s batches=%d "
            "first: topic=%s queue=%d bytes=%d position=%d error=%s",
            name,
            len(lost),
            self._state.topic_name(batch.topic_id),
            batch.queue_id,
            batch.size,
            batch.position,
            reason,
        )


def held_key(entry: bytes, name: str, batch: StagedEntry) -> HeldKey:
    """Verify that an entry is that of a staged batch, and return its key. Raises `CorruptEntry`."""
    held = effect(memoryview(entry), batch.position)
    if not isinstance(held, BatchHeld) or held.tag != TAG:
        raise CorruptEntry(f"the entry at position {batch.position} has no staged batch")
    transaction, found = staged_in(held)
    if (transaction.name, found) != (name, batch):
        raise CorruptEntry(
            f"the entry at position {batch.position} is not the staged batch, but batch {found.sequence} of "
            f"producer {found.producer_id:016x} for {transaction}"
        )
    return held.key
