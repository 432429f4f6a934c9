"""Transactions: staged batches, the latest decision of each name, and the batches still to be published.

A staged batch is in the log, but in no queue. A decision names the batches that make up a transaction: these are then
published, that is, copied to their queues one after the other. All others are dropped.

Of each name, the decision with the latest number is kept. The decision on a number is final, so a repeated request gets
the same answer. Half messages are staged and published like all others, under the name of their producer group, but
each of their numbers is random and ends independently. That outcome is final, and only the latest ones are remembered:
see `HalfOutcomes`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec

from minimq_broker.features.staged.staging import (
    BatchStaged,
    Ending,
    HalfOutcome,
    HalfTransaction,
    Stage,
    StagedCount,
    StagedEntry,
    StageKey,
    TransactionId,
    size_of,
)
from minimq_broker.state.facts import HalfEnded, PublicationSkipped, TransactionDecided, TransactionsExpired
from minimq_broker.state.queue_ends import NOTHING_NEEDED
from minimq_common.errors import InvalidArgument, TransactionEnded
from minimq_common.names import is_half_name

#: Names whose latest decision is kept: a client asks for it when the next transaction of its name ends. Far fewer
#: transactions of other names end in between.
MAX_NAMES = 100_000
#: Bytes of kept decisions; each names the batches of its transaction at all brokers.
MAX_DECISION_BYTES = 64 << 20
#: Remembered outcomes of half messages; they take 20 MB of memory.
MAX_OUTCOMES = 100_000
_POSITION_OF = attrgetter("position")


class TransactionTable:
    """The transactions of one broker, bounded."""

    def __init__(
        self, changed: set[tuple[Any, ...]], max_names: int = MAX_NAMES, max_decision_bytes: int = MAX_DECISION_BYTES
    ) -> None:
        self._changed = changed
        self._max_names = max_names
        self._max_decision_bytes = max_decision_bytes
        #: What is staged for undecided transactions, by producer id.
        self._stages: dict[TransactionId, dict[int, Stage]] = {}
        self._numbers: dict[str, set[int]] = {}
        #: Latest decision last, or unordered after a load until `_order` sorts it.
        self._endings: OrderedDict[str, Ending] = OrderedDict()
        self._ordered = True
        self.open = StagedCount()
        self.outcomes = HalfOutcomes(changed)
        self._decision_bytes = 0
        self.needed_from = NOTHING_NEEDED
        #: Log positions of the batches that wait for a decision in the saved state, ascending.
        self.saved_positions: list[int] = []
        #: Publications that would have to be repeated if the end of the log were lost: log position at which each
        #: ended, and the position from which on it needs the log.
        self._finished: list[tuple[int, int]] = []
        self._finished_from = NOTHING_NEEDED
        #: Decided batches that are not published yet.
        self._waiting_count = self._waiting_size = 0
        #: Names with such batches, and the lowest log position that they need.
        self.unpublished: dict[str, int] = {}

    def __iter__(self) -> Iterator[StageKey]:
        return (StageKey(*transaction, pid) for transaction, parts in self._stages.items() for pid in parts)

    # ---- lookups -----------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return self.open.all.batches + self._waiting_count

    @property
    def size(self) -> int:
        """Total size of their entries in bytes."""
        return self.open.all.size + self._waiting_size

    def parts(self, transaction: TransactionId) -> Mapping[int, Stage]:
        """Return what is staged for an undecided transaction, by producer id."""
        return self._stages.get(transaction, {})

    def find(self, transaction: TransactionId, producer_id: int, sequence: int) -> StagedEntry | None:
        """Return a staged batch of an undecided transaction, None if there is no such batch."""
        stage = self.parts(transaction).get(producer_id)
        return stage.batches.get(sequence) if stage else None

    def open_half_transactions(self) -> dict[TransactionId, HalfTransaction]:
        """Return the undecided transactions with half messages. Any thread may call this."""
        return {
            transaction: HalfTransaction(producer_id, stage)
            for transaction, parts in self._stages.copy().items()
            if is_half_name(transaction.name)
            for producer_id, stage in parts.copy().items()
        }

    def staged(self, transaction: TransactionId) -> list[StagedEntry]:
        """Return the batches of an undecided transaction with half messages, in their order."""
        found: list[StagedEntry] = []
        for stage in self._stages.get(transaction, {}).values():
            found += stage.in_order
        return found

    def ending(self, name: str) -> Ending | None:
        """Return the end of the latest decided transaction of a name, None if there is none."""
        return self._endings.get(name)

    def endings(self) -> list[tuple[str, int, int]]:
        """Return name, latest decided number, and number of batches still to be published, sorted by name."""
        return [
            (name, ending.number, len(ending.batches) - ending.published)
            for name, ending in sorted(self._endings.items())
        ]

    def check_open(self, transaction: TransactionId, producer_id: int) -> None:
        """Raise if the transaction has ended, or is one with half messages of another producer."""
        name, number = transaction
        if is_half_name(name):
            outcome = self.outcomes.of(transaction)
            if outcome is not None:
                raise ended(transaction, outcome)
            check_producer(transaction, producer_id, self.parts(transaction))
            return
        ending = self._endings.get(name)
        if ending is not None and number <= ending.number:
            raise TransactionEnded(
                f"transaction {number} of {name!r} cannot accept more: the broker has a decision about "
                f"{ending.number}; a later writer has finished it, so this one may stop"
            )

    def missing(self, decided: TransactionDecided, log_start: int) -> int:
        """Return how many of the batches that a decision names are not staged, or no longer in the log."""
        transaction = TransactionId(decided.name, decided.number)
        found = (self.find(transaction, part.producer_id, each) for part in decided.parts for each in part.sequences)
        return sum(batch is None or batch.position < log_start for batch in found)

    def open_from(self, *, halves_only: bool = False) -> int:
        """Return the log position of the oldest batch that waits for a decision. Any thread may call this."""
        return min(self._positions(halves_only=halves_only), default=NOTHING_NEEDED)

    def _positions(self, *, halves_only: bool) -> Iterator[int]:
        for transaction, parts in self._stages.copy().items():
            if not halves_only or is_half_name(transaction.name):
                for stage in parts.copy().values():
                    yield from (batch.position for batch in stage.batches.copy().values())

    def next_to_publish(self, name: str, max_bytes: int, max_batches: int) -> list[StagedEntry]:
        """Return the next batches of a name to be published, up to the one that reaches `max_bytes`."""
        found: list[StagedEntry] = []
        ending = self._endings.get(name)
        for batch in islice(ending.waiting if ending else (), max_batches):
            found.append(batch)
            max_bytes -= batch.size
            if max_bytes <= 0:
                break
        return found

    def of_name(self, name: str) -> tuple[int, int]:
        """Return number and bytes of the staged batches of a name that are not published yet."""
        ending = self._endings.get(name)
        sizes = [*map(size_of, ending.waiting)] if ending else []
        for number in self._numbers.get(name, ()):
            for stage in self._stages[TransactionId(name, number)].values():
                sizes += map(size_of, stage.batches.values())
        return len(sizes), sum(sizes)

    def older(self, before_ms: int, most: int) -> tuple[TransactionId, ...]:
        """Return transactions (not with half messages) that have waited for a decision since before a time."""
        found = (
            transaction
            for transaction, parts in self._stages.items()
            if not is_half_name(transaction.name) and any(stage.began_ms < before_ms for stage in parts.values())
        )
        return tuple(islice(found, most))

    # ---- changes -----------------------------------------------------------------------------------

    def apply(
        self, entry: BatchStaged | TransactionDecided | PublicationSkipped | TransactionsExpired | HalfEnded, at: int
    ) -> None:
        """Apply the effect of the entry at log position `at`."""
        match entry:
            case BatchStaged():
                self._stage(entry)
            case TransactionDecided():
                self._decide(entry, at)
            case PublicationSkipped(name, _, count):
                self._count_published(name, count, at)
            case TransactionsExpired(transactions):
                self._drop_all(TransactionId(*each) for each in transactions)
            case HalfEnded():
                self._end_half(entry, at)

    def _end_half(self, fact: HalfEnded, at: int) -> None:
        transaction = TransactionId(fact.name, fact.number)
        staged = self.staged(transaction)
        if staged and fact.outcome == HalfOutcome.COMMITTED:
            self._await_publication(fact.name, self._endings.setdefault(fact.name, Ending(at)), staged, at)
        self._drop_all([transaction])  # only now: at each moment one of the two tables must pin their segments
        self.outcomes.remember(fact, at)

    def _await_publication(self, name: str, ending: Ending, batches: list[StagedEntry], at: int) -> None:
        ending.batches += batches
        self._waiting_count += len(batches)
        self._waiting_size += sum(map(size_of, batches))
        self._changed.add(("ended", name))
        self._note(name, ending, at)

    def _stage(self, staged: BatchStaged) -> None:
        transaction, producer_id, sequence, batch = staged
        parts = self._parts_of(transaction)
        stage = parts.get(producer_id)
        former = None if stage is None else stage.batches.get(sequence)
        if stage is None:  # added with its batch: to another thread, an empty one would seem to have begun in 1970
            parts[producer_id] = Stage({sequence: batch})
        else:
            stage.batches[sequence] = batch
        gone = (0, 0) if former is None else (1, former.size)
        self.open.add(transaction.name, producer_id, 1 - gone[0], batch.size - gone[1], int(stage is None))
        self._changed.add(("staged", *transaction, producer_id))

    def _parts_of(self, transaction: TransactionId) -> dict[int, Stage]:
        parts = self._stages.get(transaction)
        if parts is None:
            parts = self._stages[transaction] = {}
            self._numbers.setdefault(transaction.name, set()).add(transaction.number)
        return parts

    def _decide(self, decided: TransactionDecided, at: int) -> None:
        name = decided.name
        ending = self._endings.setdefault(name, Ending())
        self._endings.move_to_end(name)
        decided_on: list[StagedEntry] = []
        for part in decided.parts:
            stage = self.parts(TransactionId(name, decided.number)).get(part.producer_id, Stage())
            found = [*filter(None, (stage.batches.pop(sequence, None) for sequence in part.sequences))]
            decided_on += found
            self.open.add(name, part.producer_id, -len(found), -sum(map(size_of, found)))
        older = [number for number in self._numbers.get(name, ()) if number <= decided.number]
        self._drop_all(TransactionId(name, number) for number in older)
        self._decision_bytes += len(decided.decision) - len(ending.decision)
        ending.at, ending.number, ending.decision = at, decided.number, decided.decision
        self._await_publication(name, ending, decided_on, at)
        self._forget_names()

    def publish(self, position: int, at: int) -> None:
        """Note that the staged batch at log position `position` was published by the entry at `at`."""
        for name in self.unpublished:
            if next(self._endings[name].waiting).position == position:
                self._count_published(name, 1, at)
                break

    def _count_published(self, name: str, count: int, at: int) -> None:
        ending = self._endings.get(name)
        if ending is None or ending.published == len(ending.batches):
            return
        batches = ending.batches[ending.published : ending.published + count]
        self._waiting_count -= len(batches)
        self._waiting_size -= sum(map(size_of, batches))
        ending.published += len(batches)
        self._changed.add(("ended", name))
        if ending.published == len(ending.batches):
            self._note(name, ending, at)

    def forget_topic(self, topic_id: int, at: int) -> None:
        """Drop all batches of a topic, which the entry at log position `at` deletes."""
        self._retain_open(topic_id)
        for name in self.unpublished:
            ending = self._endings[name]
            waiting = list(ending.waiting)
            kept = [batch for batch in waiting if batch.topic_id != topic_id]
            if len(kept) < len(waiting):
                ending.batches, ending.published = kept, 0
                self._waiting_count -= len(waiting) - len(kept)
                self._waiting_size -= sum(map(size_of, waiting)) - sum(map(size_of, kept))
                self._changed.add(("ended", name))
                self._note(name, ending, at)

    def _retain_open(self, topic_id: int) -> None:
        for transaction, parts in [*self._stages.items()]:
            for producer_id, stage in [*parts.items()]:
                gone = [each for each, batch in stage.batches.items() if batch.topic_id == topic_id]
                if len(gone) == len(stage.batches):
                    self._drop(transaction, producer_id)
                elif gone:
                    size = sum(stage.batches.pop(sequence).size for sequence in gone)
                    self.open.add(transaction.name, producer_id, -len(gone), -size)
                    self._changed.add(("staged", *transaction, producer_id))

    def _drop_all(self, transactions: Iterable[TransactionId]) -> None:
        for transaction in transactions:
            for producer_id in [*self.parts(transaction)]:
                self._drop(transaction, producer_id)

    def _drop(self, transaction: TransactionId, producer_id: int) -> None:
        parts = self._stages[transaction]
        gone = parts.pop(producer_id)
        self.open.add(transaction.name, producer_id, -len(gone.batches), -gone.size, -1)
        self._changed.add(("staged", *transaction, producer_id))
        if not parts:
            del self._stages[transaction]
            numbers = self._numbers[transaction.name]
            numbers.remove(transaction.number)
            if not numbers:
                del self._numbers[transaction.name]

    def _note(self, name: str, ending: Ending, at: int) -> None:
        pins = self.unpublished.copy()
        pin = pins.pop(name, NOTHING_NEEDED)
        if ending.published < len(ending.batches):
            pins[name] = min((pin, *map(_POSITION_OF, ending.waiting)))
        else:
            ending.batches, ending.published = [], 0
            if is_half_name(name):  # `outcomes` remembers the decisions
                self._endings.pop(name, None)
            if pin != NOTHING_NEEDED:
                self._finished.append((at, pin))
                self._finished_from = min(self._finished_from, pin)
        self.unpublished = pins
        self._pin()

    def _pin(self) -> None:
        self.needed_from = min((self._finished_from, *self.unpublished.values()))

    def saving(self, position: int) -> Callable[[], None]:
        """Return a function that is called once the state at a log position, which is this one, is on disk."""
        staged = sorted(self._positions(halves_only=False))

        def saved() -> None:
            self.saved_positions = staged
            self._finished = [(at, pin) for at, pin in self._finished if at >= position]  # the others are final
            self._finished_from = min((pin for _, pin in self._finished), default=NOTHING_NEEDED)
            self._pin()

        return saved

    def _forget_names(self) -> None:
        while len(self._endings) > self._max_names or self._decision_bytes > self._max_decision_bytes:
            self._order()
            latest = next(reversed(self._endings))
            oldest = next(name for name in self._endings if name not in self.unpublished or name == latest)
            if oldest == latest:
                return
            self._decision_bytes -= len(self._endings.pop(oldest).decision)
            self._changed.add(("ended", oldest))

    def _order(self) -> None:
        if not self._ordered:
            self._endings = OrderedDict(sorted(self._endings.items(), key=lambda item: item[1].at))
            self._ordered = True

    # ---- checkpoint rows -----------------------------------------------------------------------------

    def stage_row(self, name: str, number: int, producer_id: int) -> Stage | None:
        """Return the checkpoint row of a producer in a transaction, None if it is gone. Not a copy: encode at once."""
        return self.parts(TransactionId(name, number)).get(producer_id)

    def load_stage(self, row: Any, name: str, number: int, producer_id: int) -> None:
        """Load a checkpoint row. Rows may be loaded in any order."""
        stage = self._parts_of(TransactionId(name, number))[producer_id] = msgspec.convert(row, Stage)
        self.open.add(name, producer_id, len(stage.batches), stage.size, 1)

    def load_ending(self, row: Any, name: str) -> None:
        """Load the checkpoint row of a name. Rows may be loaded in any order."""
        ending = self._endings[name] = msgspec.convert(row, Ending)
        waiting = list(ending.waiting)
        self._waiting_count += len(waiting)
        self._waiting_size += sum(map(size_of, waiting))
        self._decision_bytes += len(ending.decision)
        self._note(name, ending, 0)
        self._ordered = False


def check_producer(transaction: TransactionId, producer_id: int, parts: Collection[int]) -> None:
    """Raise `InvalidArgument` if another producer has begun this transaction with half messages."""
    if parts and producer_id not in parts:
        raise InvalidArgument(
            f"{described(transaction)} was begun by another producer: each transaction draws a number of its own"
        )


class HalfOutcomes:
    """The latest outcomes of transactions with half messages, each a row of the checkpoint."""

    def __init__(self, changed: set[tuple[Any, ...]], most: int = MAX_OUTCOMES) -> None:
        self._changed = changed
        self._most = most
        #: Log position of the fact, and outcome. Latest last, unless some were loaded.
        self._ends: OrderedDict[TransactionId, tuple[int, HalfOutcome]] = OrderedDict()
        self._is_ordered = True

    def of(self, transaction: TransactionId) -> HalfOutcome | None:
        """Return how a transaction ended; None if it has not, or is no longer remembered."""
        end = self._ends.get(transaction)
        return None if end is None else end[1]

    def remember(self, fact: HalfEnded, at: int) -> None:
        """Note the outcome in a fact at log position `at`."""
        transaction = TransactionId(fact.name, fact.number)
        self._ends[transaction] = at, fact.outcome
        self._changed.add(("half-ended", *transaction))
        if len(self._ends) > self._most:
            if not self._is_ordered:
                self._ends = OrderedDict(sorted(self._ends.items(), key=lambda item: item[1]))
                self._is_ordered = True
            self._changed.add(("half-ended", *self._ends.popitem(last=False)[0]))

    def row(self, name: str, number: int) -> tuple[int, HalfOutcome] | None:
        """Return the checkpoint row of an outcome; None if it is forgotten."""
        return self._ends.get(TransactionId(name, number))

    def load(self, row: Any, name: str, number: int) -> None:
        """Load a checkpoint row. Rows may be loaded in any order."""
        self._ends[TransactionId(name, number)] = msgspec.convert(row, tuple[int, HalfOutcome])
        self._is_ordered = False


def described(transaction: TransactionId) -> str:
    """Return the name of a transaction with half messages for errors."""
    return f"transaction {transaction.number} of producer group {transaction.name[1:]!r}"


def ended(transaction: TransactionId, outcome: HalfOutcome) -> TransactionEnded:
    why = {
        HalfOutcome.COMMITTED: "was committed, by an answer of a check or by hand",
        HalfOutcome.ROLLED_BACK: "was rolled back, by its producer, an answer of a check, or by hand",
        HalfOutcome.EXPIRED: "has expired: it was not decided in time, or the broker lost a part of it",
    }[outcome]
    return TransactionEnded(f"{described(transaction)} {why}: that outcome stands")
