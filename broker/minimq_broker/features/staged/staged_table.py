"""Staged batches: in the log, but in no queue until their transaction ends. Then they are published, or dropped.

There is one table for both life cycles: they share the space, the order of publication of a name, and what the log has
to keep for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from minimq_broker.features.feature import KernelState, Table
from minimq_broker.features.staged.facts import HalfEnded, PublicationSkipped, TransactionDecided, TransactionsExpired
from minimq_broker.features.staged.life_cycles import Changed, End, HalfMessages, Stages, Transactions
from minimq_broker.features.staged.staging import Stage, StagedCount, StagedEntry, TransactionId, size_of, staged_in
from minimq_broker.state.facts import Topic
from minimq_broker.state.queue_ends import BatchApplied, BatchHeld, HeldKey
from minimq_common.names import is_half_name


class Unpublished:
    """Batches of committed transactions that are not published yet, by name in the order of publication."""

    def __init__(self, changed: Changed) -> None:
        self._changed = changed
        self._batches: dict[str, deque[StagedEntry]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._batches

    def __iter__(self) -> Iterator[str]:
        """Yield the names. Any thread may call this."""
        return iter(self._batches.copy())

    def of(self, name: str) -> list[StagedEntry]:
        """Return the batches of a name. Any thread may call this, as the next methods."""
        return [*self._batches.get(name, deque()).copy()]

    def all(self) -> list[StagedEntry]:
        return [batch for name in self for batch in self.of(name)]

    def add(self, name: str, batches: Iterable[StagedEntry]) -> None:
        if batches := [*batches]:
            self._batches.setdefault(name, deque()).extend(batches)
            self._changed.add(("unpublished", name))

    def remove(self, position: int) -> None:
        """Remove the batch at a log position, which is the next one of its name."""
        for name, batches in self._batches.items():
            if batches[0].position == position:
                batches.popleft()
                self._note(name)
                return

    def forget_topic(self, topic_id: int) -> None:
        for name in self:
            self._batches[name] = deque(batch for batch in self.of(name) if batch.topic_id != topic_id)
            self._note(name)

    def _note(self, name: str) -> None:
        if not self._batches[name]:
            del self._batches[name]
        self._changed.add(("unpublished", name))

    def load(self, name: str, batches: list[StagedEntry]) -> None:
        """Load a row of a checkpoint."""
        self._batches[name] = deque(batches)


class StagedTable(Table):
    """The staged batches of one broker, bounded."""

    def __init__(self) -> None:
        super().__init__()
        #: What is staged for open transactions of both kinds.
        self.room = StagedCount()
        self.unpublished = Unpublished(self.changed)
        self.transactions = Transactions(self.changed, self.room, self.unpublished)
        self.halves = HalfMessages(self.changed, self.room)
        #: Log positions of the batches that the saved state has, ascending.
        self.saved_positions: list[int] = []

    def stages(self, name: str) -> Stages:
        """Return the transactions of the kind that has this name."""
        return self.halves if is_half_name(name) else self.transactions

    @property
    def count(self) -> int:
        return self.room.all.batches + len(self.unpublished.all())

    @property
    def size(self) -> int:
        """Total size of the entries in bytes."""
        return self.room.all.size + size_of(self.unpublished.all())

    # ---- changes -------------------------------------------------------------------------------------

    def held(self, held: BatchHeld, state: KernelState) -> None:
        transaction, batch = staged_in(held)
        self.stages(transaction.name).stage(transaction, batch)

    def released(self, key: HeldKey, batch: BatchApplied, state: KernelState) -> None:
        self.unpublished.remove(key.position)

    def apply(self, fact: Any, at_ms: int, state: KernelState) -> None:
        match fact:
            case TransactionDecided(name):
                self.unpublished.add(name, self.transactions.decide(fact, state.position))
            case HalfEnded(name):
                self.unpublished.add(name, self.halves.end(fact, state.position))
            case PublicationSkipped(position):
                self.unpublished.remove(position)
            case TransactionsExpired(transactions):
                for each in transactions:
                    self.transactions.drop(TransactionId(*each))

    def topic_deleted(self, topic: Topic, state: KernelState) -> None:
        for each in (self.transactions, self.halves, self.unpublished):
            each.forget_topic(topic.topic_id)

    # ---- checkpoint ----------------------------------------------------------------------------------

    def saving(self) -> Callable[[], None]:
        open_ones = (*self.transactions.positions(), *self.halves.positions())
        positions = sorted((*open_ones, *(batch.position for batch in self.unpublished.all())))
        return partial(setattr, self, "saved_positions", positions)

    def row(self, key: tuple[Any, ...]) -> Any | None:
        match key:
            case "open", name, number, producer_id:
                return self.stages(name).parts(TransactionId(name, number)).get(producer_id)
            case "unpublished", name:
                return self.unpublished.of(name) or None
            case "decided", name:
                return self.transactions.ended.ends.get(name)
            case _:
                return self.halves.ended.ends.get(TransactionId(*key[1:]))

    def load(self, key: tuple[Any, ...], value: Any) -> None:
        match key:
            case "open", str(name), int(number), int(producer_id):
                self.stages(name).load(TransactionId(name, number), producer_id, msgspec.convert(value, Stage))
            case "unpublished", str(name):
                self.unpublished.load(name, msgspec.convert(value, list[StagedEntry]))
            case "decided", str(name):
                self.transactions.ended.load(name, msgspec.convert(value, End))
            case "half-ended", str(name), int(number):
                self.halves.ended.load(TransactionId(name, number), msgspec.convert(value, End))
            case _:
                raise ValueError(f"there is no row {key!r}")
