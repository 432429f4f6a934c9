"""Jobs that end transactions with half messages, and their decisions in one group commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minimq_broker.core.facts import HalvesEnded
from minimq_broker.core.held.half_outcomes import HalfOutcome, ended
from minimq_broker.core.held.staged_batches import StagedBatch, TransactionId
from minimq_broker.core.held.transactions import TransactionTable, check_producer
from minimq_broker.store.jobs import Job, JobObserver
from minimq_broker.store.log_reader import LogReader
from minimq_common.names import is_half_name

if TYPE_CHECKING:
    from minimq_broker.store.commit_group import CommitGroup

#: Published batches in one transaction of the writer, by bytes and by number (small ones cost time, not disk), so
#: that other jobs do not wait long for it.
MAX_PUBLISHED_BYTES = 16 << 20
MAX_PUBLISHED = 500


@dataclass(slots=True, eq=False)
class EndStep:
    """A request to end one transaction.

    Results: the outcome that stands, None when nothing is known of the transaction; and whether it is new.
    """

    transaction: TransactionId
    wanted: HalfOutcome
    #: How many its producer has staged for it; 0 from anybody else, who cannot know.
    batches: int = 0
    stands: HalfOutcome | None = field(default=None, init=False)
    is_new: bool = field(default=False, init=False)


@dataclass(slots=True, eq=False)
class EndJob(Job):
    """The ends of transactions with half messages that came during one commit; recorded by one fact for each name.

    Results: those of the steps, and whether some committed batches are still to be published.
    """

    steps: Sequence[EndStep]
    leaves_some: bool = field(default=False, init=False)

    @property
    def size(self) -> int:
        """Bytes that the job holds in memory, roughly."""
        return 256 * len(self.steps)

    def decide(self, group: CommitGroup, log: LogReader) -> None:
        """End them, and publish what is committed along with that if it is not too much."""
        for fact, committed in group.halves.decide(self):
            group.add(fact)
            if group.refusal is None and group.halves.may_publish(fact, committed):
                if committed:
                    group.publish(TransactionId(fact.name, fact.committed[-1]), committed, log)
            else:
                group.halves.leave(fact.name)
                self.leaves_some = True

    def finish(self, observer: JobObserver) -> None:
        """Answer the producers, unless their batches may not be acknowledged."""
        self.refuse(observer, to_sender=True)
        self.done(self)


class HalfDrafts:
    """The changes of one group commit to half messages."""

    def __init__(
        self, table: TransactionTable, staged: Mapping[TransactionId, Mapping[int, Mapping[int, StagedBatch]]]
    ) -> None:
        self._table = table
        #: What the group has staged so far, by producer and sequence.
        self._staged = staged
        self._ended: dict[TransactionId, HalfOutcome] = {}
        self._published = self._published_bytes = 0
        #: Names with committed batches that the group does not publish: what comes behind must not overtake them.
        self._left: set[str] = set()

    def check_open(self, transaction: TransactionId, producer_id: int) -> None:
        """Raise as `TransactionTable.check_open`, by what the group does."""
        if is_half_name(transaction.name):
            if transaction in self._ended:
                raise ended(transaction, self._ended[transaction])
            check_producer(transaction, producer_id, self._staged.get(transaction, {}))

    def decide(self, job: EndJob) -> Iterator[tuple[HalvesEnded, list[StagedBatch]]]:
        """Decide a job; yield the fact for each name, with what it commits."""
        by_name: dict[str, dict[HalfOutcome, list[int]]] = {}
        for step in job.steps:
            transaction = step.transaction
            step.stands = self._ended.get(transaction) or self._table.outcomes.of(transaction)
            if step.stands is not None:
                continue
            step.stands = self._outcome(step)
            if step.stands is not None:
                step.is_new = True
                self._ended[transaction] = step.stands
                by_name.setdefault(transaction.name, {}).setdefault(step.stands, []).append(transaction.number)
        for name, numbers in by_name.items():
            committed, rolled_back, expired = (tuple(numbers.get(outcome, ())) for outcome in HalfOutcome)
            fact = HalvesEnded(name, committed, rolled_back, expired)
            yield fact, self._table.committed(fact)

    def _outcome(self, step: EndStep) -> HalfOutcome | None:
        there = sum(len(stage.batches) for stage in self._table.parts(step.transaction).values())
        there += sum(map(len, self._staged.get(step.transaction, {}).values()))
        if not there and not step.batches:
            return None
        if step.wanted is HalfOutcome.COMMITTED and there != (step.batches or there):
            return HalfOutcome.EXPIRED  # a part is lost: all or none
        return step.wanted

    def may_publish(self, fact: HalvesEnded, committed: Sequence[StagedBatch]) -> bool:
        """Tell whether the group publishes what a fact commits, which counts for its bounds."""
        if fact.name in self._left or fact.name in self._table.unpublished:
            return False
        if any(self._staged.get(TransactionId(fact.name, number)) for number in fact.committed):
            return False  # their entries cannot be read yet
        number, size = self._published + len(committed), self._published_bytes + sum(batch.size for batch in committed)
        if number > MAX_PUBLISHED or size > MAX_PUBLISHED_BYTES:
            return False
        self._published, self._published_bytes = number, size
        return True

    def leave(self, name: str) -> None:
        """Note that something committed under a name is not published by the group."""
        self._left.add(name)
