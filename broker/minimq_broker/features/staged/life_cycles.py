"""The two life cycles of transactions: how they are staged is the same, how they end is not.

`Transactions` have names of their own, and numbers that grow. A decision ends a number, and all lower ones of the name.
`HalfMessages` are staged under the name of their producer group. Their numbers are random, and each ends independently.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec

from minimq_broker.features.staged.facts import HalfEnded, TransactionDecided
from minimq_broker.features.staged.staging import (
    HalfOutcome,
    HalfTransaction,
    Stage,
    StagedCount,
    StagedEntry,
    StageKey,
    TransactionId,
    size_of,
)
from minimq_common.errors import InvalidArgument, TransactionEnded

#: Names whose latest decision is kept: a client asks for it when the next transaction of its name ends. Far fewer
#: transactions of other names end in between.
MAX_NAMES = 100_000
#: Bytes of kept decisions; each names the batches of its transaction at all brokers.
MAX_DECISION_BYTES = 64 << 20
#: Remembered outcomes of half messages; they take 20 MB of memory.
MAX_OUTCOMES = 100_000

Key = TypeVar("Key", bound=Hashable)
Changed = set[tuple[Any, ...]]


class End(msgspec.Struct, frozen=True, array_like=True):
    """The end of a transaction; also a row of the checkpoint."""

    #: Log position of the fact.
    at: int
    #: The decided number, or the `HalfOutcome`.
    result: int
    #: The decision of the client for all brokers, as it was received.
    decision: bytes = b""


class LatestEnds(Generic[Key]):
    """The latest ends, by name or transaction: the oldest one is forgotten first, unless its key is in `kept`."""

    def __init__(
        self,
        changed: Callable[[Key], None],
        max_ends: int,
        max_bytes: int = MAX_DECISION_BYTES,
        kept: Container[Key] = (),
    ) -> None:
        self._changed, self._kept = changed, kept
        self._max_ends, self._max_bytes = max_ends, max_bytes
        #: Latest last, or unordered after a load until `_shrink` sorts it.
        self.ends: OrderedDict[Key, End] = OrderedDict()
        self._is_ordered = True
        self._bytes = 0

    def add(self, key: Key, end: End) -> None:
        self.load(key, end, is_latest=True)
        self._changed(key)
        if len(self.ends) > self._max_ends or self._bytes > self._max_bytes:
            self._shrink(key)

    def load(self, key: Key, end: End, *, is_latest: bool = False) -> None:
        """Load the row of a checkpoint. Rows may be loaded in any order."""
        former = self.ends.pop(key, None)
        self.ends[key] = end
        self._bytes += len(end.decision) - (len(former.decision) if former else 0)
        self._is_ordered = self._is_ordered and is_latest

    def _shrink(self, latest: Key) -> None:
        if not self._is_ordered:
            self.ends = OrderedDict(sorted(self.ends.items(), key=lambda item: item[1].at))
            self._is_ordered = True
        while len(self.ends) > self._max_ends or self._bytes > self._max_bytes:
            oldest = next((key for key in self.ends if key not in self._kept), latest)
            if oldest == latest:
                return
            self._bytes -= len(self.ends.pop(oldest).decision)
            self._changed(oldest)


class Stages:
    """The batches of the open transactions of one life cycle."""

    def __init__(self, changed: Changed, room: StagedCount) -> None:
        self._changed, self.room = changed, room
        #: By producer id.
        self._open: dict[TransactionId, dict[int, Stage]] = {}

    def __iter__(self) -> Iterator[StageKey]:
        """Yield the keys of all stages. Any thread may call this."""
        for transaction, parts in self._open.copy().items():
            yield from (StageKey(*transaction, producer_id) for producer_id in parts.copy())

    def parts(self, transaction: TransactionId) -> Mapping[int, Stage]:
        """Return the stages of an open transaction, by producer id."""
        return self._open.get(transaction, {})

    def find(self, transaction: TransactionId, producer_id: int, sequence: int) -> StagedEntry | None:
        stage = self.parts(transaction).get(producer_id)
        return stage.batches.get(sequence) if stage else None

    def positions(self) -> Iterator[int]:
        """Yield the log positions of all batches."""
        return (
            batch.position
            for parts in self._open.values()
            for stage in parts.values()
            for batch in stage.batches.values()
        )

    def check_open(self, transaction: TransactionId, producer_id: int) -> None:
        """Raise if the producer cannot add to the transaction."""
        raise NotImplementedError

    def stage(self, transaction: TransactionId, batch: StagedEntry) -> None:
        parts = self._open.setdefault(transaction, {})
        stage, producer_id = parts.get(batch.producer_id), batch.producer_id
        if stage is None:
            parts[producer_id] = Stage({batch.sequence: batch})
        elif batch.sequence not in stage.batches:
            stage.batches[batch.sequence] = batch
        else:
            return
        self.room.add(transaction.name, producer_id, 1, batch.size, int(stage is None))
        self._changed.add(("open", *transaction, producer_id))

    def drop(self, transaction: TransactionId) -> None:
        for producer_id in [*self.parts(transaction)]:
            self._retain(transaction, producer_id, {})

    def forget_topic(self, topic_id: int) -> None:
        for name, number, producer_id in [*self]:
            transaction = TransactionId(name, number)
            batches = self.parts(transaction)[producer_id].batches
            left = {sequence: batch for sequence, batch in batches.items() if batch.topic_id != topic_id}
            if len(left) < len(batches):
                self._retain(transaction, producer_id, left)

    def _retain(self, transaction: TransactionId, producer_id: int, left: dict[int, StagedEntry]) -> None:
        parts = self._open[transaction]
        before = parts.pop(producer_id).batches
        if left:
            parts[producer_id] = Stage(left)
        if not parts:
            del self._open[transaction]
        count, size = len(left) - len(before), size_of(left.values()) - size_of(before.values())
        self.room.add(transaction.name, producer_id, count, size, -(not left))
        self._changed.add(("open", *transaction, producer_id))

    def load(self, transaction: TransactionId, producer_id: int, stage: Stage) -> None:
        """Load a row of a checkpoint. Rows may be loaded in any order."""
        self._open.setdefault(transaction, {})[producer_id] = stage
        self.room.add(transaction.name, producer_id, len(stage.batches), size_of(stage.batches.values()), 1)


class Transactions(Stages):
    """Transactions across brokers. Of each name, the decision with the latest number is kept."""

    def __init__(
        self,
        changed: Changed,
        room: StagedCount,
        kept: Container[str] = (),
        max_names: int = MAX_NAMES,
        max_decision_bytes: int = MAX_DECISION_BYTES,
    ) -> None:
        super().__init__(changed, room)
        self.ended = LatestEnds[str](lambda name: changed.add(("decided", name)), max_names, max_decision_bytes, kept)

    def decision(self, name: str) -> End | None:
        """Return the decision about the latest number of a name, None if there is none."""
        return self.ended.ends.get(name)

    def check_open(self, transaction: TransactionId, producer_id: int) -> None:
        decision = self.decision(transaction.name)
        if decision is not None and transaction.number <= decision.result:
            raise TransactionEnded(
                f"transaction {transaction.number} of {transaction.name!r} cannot accept more: the broker has a "
                f"decision about {decision.result}; a later writer has finished it, so this one may stop"
            )

    def named(self, fact: TransactionDecided) -> list[StagedEntry | None]:
        """Return the batches that a decision names, in this order, and None for each that is not staged."""
        transaction = TransactionId(fact.name, fact.number)
        numbers = dict.fromkeys((part.producer_id, each) for part in fact.parts for each in part.sequences)
        return [self.find(transaction, *number) for number in numbers]

    def of_name(self, name: str) -> list[StagedEntry]:
        """Return all batches that are staged under a name."""
        parts = [parts for transaction, parts in self._open.items() if transaction.name == name]
        return [batch for each in parts for stage in each.values() for batch in stage.batches.values()]

    def older(self, before_ms: int, most: int) -> tuple[TransactionId, ...]:
        """Return transactions that have been open since before a time."""
        found = (
            transaction
            for transaction, parts in self._open.items()
            if any(stage.began_ms < before_ms for stage in parts.values())
        )
        return tuple(islice(found, most))

    def decide(self, fact: TransactionDecided, at: int) -> list[StagedEntry]:
        """Apply the fact at log position `at`, and return the batches to be published."""
        decided = [batch for batch in self.named(fact) if batch is not None]
        for other in [other for other in self._open if other.name == fact.name and other.number <= fact.number]:
            self.drop(other)
        self.ended.add(fact.name, End(at, fact.number, fact.decision))
        return decided


class HalfMessages(Stages):
    """Transactions with half messages, each of one producer. The latest outcomes are remembered."""

    def __init__(self, changed: Changed, room: StagedCount, max_outcomes: int = MAX_OUTCOMES) -> None:
        super().__init__(changed, room)
        self.ended = LatestEnds[TransactionId](lambda key: changed.add(("half-ended", *key)), max_outcomes)

    def open(self) -> dict[TransactionId, HalfTransaction]:
        """Return the open transactions. Any thread may call this."""
        return {
            transaction: HalfTransaction(producer_id, stage)
            for transaction, parts in self._open.copy().items()
            for producer_id, stage in parts.copy().items()
        }

    def batches(self, transaction: TransactionId) -> list[StagedEntry]:
        """Return the batches of an open transaction, in their order."""
        return [batch for stage in self.parts(transaction).values() for batch in stage.in_order]

    def outcome(self, transaction: TransactionId) -> HalfOutcome | None:
        """Return how a transaction ended; None if it has not, or is no longer remembered."""
        end = self.ended.ends.get(transaction)
        return None if end is None else HalfOutcome(end.result)

    def check_open(self, transaction: TransactionId, producer_id: int) -> None:
        outcome = self.outcome(transaction)
        if outcome is not None:
            raise TransactionEnded(f"{transaction} {_WHY[outcome]}: that outcome stands")
        if (parts := self.parts(transaction)) and producer_id not in parts:
            raise InvalidArgument(
                f"{transaction} was begun by another producer: each transaction draws a number of its own"
            )

    def end(self, fact: HalfEnded, at: int) -> list[StagedEntry]:
        """Apply the fact at log position `at`, and return the batches to be published."""
        transaction = TransactionId(fact.name, fact.number)
        self.ended.add(transaction, End(at, fact.outcome))
        batches = self.batches(transaction)
        self.drop(transaction)
        return batches if fact.outcome is HalfOutcome.COMMITTED else []


_WHY = {
    HalfOutcome.COMMITTED: "was committed, by an answer of a check or by hand",
    HalfOutcome.ROLLED_BACK: "was rolled back, by its producer, an answer of a check, or by hand",
    HalfOutcome.EXPIRED: "has expired: it was not decided in time, or the broker lost a part of it",
}
