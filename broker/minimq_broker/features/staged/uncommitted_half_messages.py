"""The job that ends a transaction with half messages, and such decisions within one commit group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minimq_broker.commit.jobs import MAX_RELEASED, MAX_RELEASED_BYTES, Job
from minimq_broker.features.staged.staging import HalfOutcome, StagedEntry, TransactionId, size_of
from minimq_broker.features.staged.transactions import TransactionTable, check_producer, ended
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.state.facts import HalfEnded
from minimq_common.names import is_half_name

if TYPE_CHECKING:
    from minimq_broker.commit.commit_group import CommitGroup


@dataclass(slots=True, eq=False)
class EndJob(Job):
    transaction: TransactionId
    wanted: HalfOutcome
    #: Number of batches that the producer has staged; 0 if the request is from anyone else.
    batches: int = 0
    #: The final outcome; None if the transaction is unknown.
    stands: HalfOutcome | None = field(default=None, init=False)
    is_new: bool = field(default=False, init=False)
    #: Some committed batches are still to be published.
    leaves_some: bool = field(default=False, init=False)

    to_sender = True

    def decide(self, group: CommitGroup, log: CommitLog) -> None:
        """End the transaction, and publish its batches in the same commit if they fit."""
        staged = group.halves.end(self)
        if not self.is_new:
            return
        assert self.stands is not None
        group.add(HalfEnded(*self.transaction, self.stands))
        if self.stands is not HalfOutcome.COMMITTED:
            return
        if group.rejection is None and group.halves.may_publish(self.transaction, staged):
            if staged:
                group.publish(self.transaction, staged, log)
        else:
            group.halves.leave(self.transaction.name)
            self.leaves_some = True


class UncommittedHalfMessages:
    def __init__(
        self, table: TransactionTable, staged: Mapping[TransactionId, Mapping[int, Mapping[int, StagedEntry]]]
    ) -> None:
        self._table = table
        #: Batches that the group has staged so far, by transaction, producer id and sequence number.
        self._staged = staged
        self._ended: dict[TransactionId, HalfOutcome] = {}
        self._published = self._published_bytes = 0
        #: Names with committed batches that the group leaves for later: later ones must not overtake these.
        self._left: set[str] = set()

    def check_open(self, transaction: TransactionId, producer_id: int) -> None:
        """Like `TransactionTable.check_open`, for the decisions of this group."""
        if is_half_name(transaction.name):
            if transaction in self._ended:
                raise ended(transaction, self._ended[transaction])
            check_producer(transaction, producer_id, self._staged.get(transaction, {}))

    def end(self, job: EndJob) -> Sequence[StagedEntry]:
        """Decide a job; return the batches that were staged before this group."""
        transaction = job.transaction
        job.stands = self._ended.get(transaction) or self._table.outcomes.of(transaction)
        staged = self._table.staged(transaction)
        there = len(staged) + sum(map(len, self._staged.get(transaction, {}).values()))
        if job.stands is not None or not (there or job.batches):
            return staged
        is_whole = there == (job.batches or there)
        job.stands = HalfOutcome.EXPIRED if job.wanted is HalfOutcome.COMMITTED and not is_whole else job.wanted
        job.is_new = True
        self._ended[transaction] = job.stands
        return staged

    def may_publish(self, transaction: TransactionId, batches: Sequence[StagedEntry]) -> bool:
        """Return whether the group may publish the batches of a transaction, and count them against the limits."""
        if transaction.name in self._left or transaction.name in self._table.unpublished:
            return False
        if self._staged.get(transaction):
            return False  # their entries cannot be read yet
        number, size = self._published + len(batches), self._published_bytes + sum(map(size_of, batches))
        if number > MAX_RELEASED or size > MAX_RELEASED_BYTES:
            return False
        self._published, self._published_bytes = number, size
        return True

    def leave(self, name: str) -> None:
        """Note that the group leaves committed batches of a name for later."""
        self._left.add(name)
