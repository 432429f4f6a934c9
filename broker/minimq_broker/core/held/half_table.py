"""Half messages: staged batches of transactions that end one by one, each by what its producer, or its check, says.

Unlike other transactions those of a producer group have no order: their numbers are drawn at random, and a decision is
about its own number alone. A number has one outcome forever: the latest are remembered, so that whoever comes later is
told what stands.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any

import msgspec

from minimq_broker.core.facts import HalvesEnded
from minimq_broker.core.held.staged_batches import BatchStaged, StagedBatch, TransactionId
from minimq_broker.core.held.staging import Staged, StagedCount
from minimq_broker.core.upkeep.retention import NOTHING_NEEDED
from minimq_common.errors import InvalidArgument, TransactionEnded

#: So many outcomes are remembered. They take 20 MB of memory.
MAX_OUTCOMES = 100_000


class HalfOutcome(IntEnum):
    """The end of a transaction with half messages."""

    COMMITTED = 1
    ROLLED_BACK = 2
    #: Nobody has decided on it in time, or some of its batches were lost.
    EXPIRED = 3

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


class Half(msgspec.Struct, array_like=True):
    """The batches of one transaction that is not ended; also its row in the checkpoint."""

    producer_id: int
    batches: dict[int, StagedBatch] = {}
    checks: int = 0

    @property
    def began_ms(self) -> int:
        """When its first batch was staged, in ms since 1970."""
        return min(batch.stored_ms for batch in self.batches.copy().values())

    @property
    def position(self) -> int:
        """Log position of the first of its batches."""
        return min(batch.position for batch in self.batches.copy().values())

    @property
    def in_order(self) -> list[StagedBatch]:
        """Its batches, in the order in which they were sent."""
        return [batch for _, batch in sorted(self.batches.copy().items())]

    @property
    def staged(self) -> Staged:
        """The size of it."""
        return Staged(len(self.batches), sum(batch.size for batch in self.batches.values()), 1)


class HalfTable:
    """The half messages of one broker, and the latest outcomes. Used as `TransactionTable`, which it is a part of."""

    def __init__(
        self, changed: set[tuple[Any, ...]], open_count: StagedCount, max_outcomes: int = MAX_OUTCOMES
    ) -> None:
        self._changed = changed
        self._open = open_count
        self._max_outcomes = max_outcomes
        self.halves: dict[TransactionId, Half] = {}
        #: Those of each fact, by its log position: one row for many. With the latest last, once they are ordered.
        self._endings: OrderedDict[int, HalvesEnded] = OrderedDict()
        self._outcomes: dict[TransactionId, HalfOutcome] = {}
        self._loaded: deque[tuple[int, HalvesEnded]] = deque()

    # ---- looking up --------------------------------------------------------------------------------

    def outcome(self, transaction: TransactionId) -> HalfOutcome | None:
        """Return how a transaction ended; None when it has not, or that is forgotten."""
        self._order()
        return self._outcomes.get(transaction)

    def outcomes(self) -> dict[TransactionId, HalfOutcome]:
        """Return all outcomes that are remembered."""
        self._order()
        return self._outcomes.copy()

    def positions(self) -> frozenset[int]:
        """Return the log positions of all batches. Any thread may ask."""
        return frozenset(batch.position for half in self.halves.copy().values() for batch in half.in_order)

    def find(self, transaction: TransactionId, producer_id: int, sequence: int) -> StagedBatch | None:
        """Return a batch that is staged for a transaction which is not ended; None when it is not."""
        half = self.halves.get(transaction)
        return half.batches.get(sequence) if half is not None and half.producer_id == producer_id else None

    def check_open(self, transaction: TransactionId, producer_id: int) -> None:
        """Raise when a producer cannot stage anything for a transaction: it has ended, or is of another one."""
        outcome = self.outcome(transaction)
        if outcome is not None:
            raise ended(transaction, outcome)
        half = self.halves.get(transaction)
        if half is not None and half.producer_id != producer_id:
            raise InvalidArgument(
                f"{described(transaction)} was begun by another producer: each transaction draws a number of its own"
            )

    @property
    def needed_from(self) -> int:
        """Log position of the oldest batch. Any thread may ask."""
        positions = (batch.position for half in self.halves.copy().values() for batch in half.batches.copy().values())
        return min(positions, default=NOTHING_NEEDED)

    # ---- changing ----------------------------------------------------------------------------------

    def stage(self, staged: BatchStaged) -> None:
        """Take a batch in."""
        half = self.halves.get(staged.transaction)
        if half is None:
            self.halves[staged.transaction] = Half(staged.producer_id, {staged.sequence: staged.batch})
            more = Staged(1, staged.batch.size, 1)
        else:
            half.batches[staged.sequence] = staged.batch
            more = Staged(1, staged.batch.size)
        self._count(staged.transaction, staged.producer_id, more)
        self._changed.add(("half", *staged.transaction))

    def committed(self, ended: HalvesEnded) -> list[StagedBatch]:
        """Return the batches to publish when some end, in their order."""
        halves = (self.halves.get(TransactionId(ended.name, number)) for number in ended.committed)
        return [batch for half in halves if half is not None for batch in half.in_order]

    def end(self, ended: HalvesEnded, at: int) -> None:
        """Take in how some ended, by the fact at a log position."""
        self._order()
        self._remember(ended, at)
        for transaction, _ in _outcomes(ended):
            self._drop(transaction)

    def checked(self, name: str, numbers: Iterable[int]) -> None:
        """Count that somebody is asked once more."""
        for number in numbers:
            half = self.halves.get(TransactionId(name, number))
            if half is not None:
                half.checks += 1
                self._changed.add(("half", name, number))

    def forget_topic(self, topic_id: int) -> None:
        """Drop all batches of a topic that is deleted."""
        for transaction, half in [*self.halves.items()]:
            gone = [sequence for sequence, batch in half.batches.items() if batch.topic_id == topic_id]
            if len(gone) == len(half.batches):
                self._drop(transaction)
            elif gone:
                sizes = [half.batches.pop(sequence).size for sequence in gone]
                self._count(transaction, half.producer_id, Staged(-len(sizes), -sum(sizes)))
                self._changed.add(("half", *transaction))

    def _drop(self, transaction: TransactionId) -> Half | None:
        half = self.halves.pop(transaction, None)
        if half is not None:
            self._count(transaction, half.producer_id, Staged(*(-number for number in half.staged)))
            self._changed.add(("half", *transaction))
        return half

    def _count(self, transaction: TransactionId, producer_id: int, more: Staged) -> None:
        self._open.add(transaction.name, producer_id, more)

    def _remember(self, ended: HalvesEnded, at: int) -> None:
        self._endings[at] = ended
        self._changed.add(("halves-ended", at))
        self._outcomes.update(_outcomes(ended))
        while len(self._outcomes) > self._max_outcomes and len(self._endings) > 1:
            position, oldest = self._endings.popitem(last=False)
            self._changed.add(("halves-ended", position))
            for transaction, _ in _outcomes(oldest):
                self._outcomes.pop(transaction, None)

    # ---- as rows, for the checkpoint -----------------------------------------------------------------

    def half_row(self, name: str, number: int) -> Half | None:
        """Return what a checkpoint holds of a transaction, to be saved at once; None when it has ended."""
        return self.halves.get(TransactionId(name, number))

    def load_half(self, row: Any, name: str, number: int) -> None:
        """Take such a row in; they may come in any order."""
        half = self.halves[TransactionId(name, number)] = msgspec.convert(row, Half)
        self._open.add(name, half.producer_id, half.staged)

    def ended_row(self, at: int) -> HalvesEnded | None:
        """Return the fact at a log position whose outcomes are remembered; None when they are not any more."""
        self._order()
        return self._endings.get(at)

    def load_ended(self, row: Any, at: int) -> None:
        """Take such a fact in; they may come in any order."""
        self._loaded.append((at, msgspec.convert(row, HalvesEnded)))

    def _order(self) -> None:
        if self._loaded:
            for at, fact in sorted(self._loaded, key=lambda item: item[0]):
                self._endings[at] = fact
                self._outcomes.update(_outcomes(fact))
            self._loaded.clear()


def described(transaction: TransactionId) -> str:
    """Return how a transaction with half messages is called in errors."""
    return f"transaction {transaction.number} of producer group {transaction.name[1:]!r}"


def ended(transaction: TransactionId, outcome: HalfOutcome) -> TransactionEnded:
    """Return the error of whoever comes after the end of a transaction."""
    why = {
        HalfOutcome.COMMITTED: "was committed, by an answer of a check or by hand",
        HalfOutcome.ROLLED_BACK: "was rolled back, by its producer, an answer of a check, or by hand",
        HalfOutcome.EXPIRED: "has expired: nobody has decided on it in time, or the broker has lost a part of it",
    }[outcome]
    return TransactionEnded(f"{described(transaction)} {why}: that outcome stands")


def _outcomes(ended: HalvesEnded) -> Iterator[tuple[TransactionId, HalfOutcome]]:
    for numbers, outcome in (
        (ended.committed, HalfOutcome.COMMITTED),
        (ended.rolled_back, HalfOutcome.ROLLED_BACK),
        (ended.expired, HalfOutcome.EXPIRED),
    ):
        for number in numbers:
            yield TransactionId(ended.name, number), outcome
