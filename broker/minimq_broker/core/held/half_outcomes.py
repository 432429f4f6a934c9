"""The ends of transactions with half messages. A number has one outcome forever; the latest are remembered.

Their numbers are drawn at random, and a decision is about its own number alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import msgspec

from minimq_broker.core.facts import HalvesEnded
from minimq_broker.core.held.staged_batches import TransactionId
from minimq_common.errors import TransactionEnded

#: Number of remembered outcomes, which take 20 MB of memory.
MAX_OUTCOMES = 100_000


class HalfOutcome(IntEnum):
    """The end of a transaction with half messages."""

    COMMITTED = 1
    ROLLED_BACK = 2
    #: It was not decided in time, or some of its batches were lost.
    EXPIRED = 3

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


class HalfOutcomes:
    """The latest outcomes; those of one fact are one row of the checkpoint. Part of a `TransactionTable`."""

    def __init__(self, changed: set[tuple[Any, ...]], most: int = MAX_OUTCOMES) -> None:
        self._changed = changed
        self._most = most
        #: By the log position of the fact. With the latest last, unless some were loaded.
        self._facts: OrderedDict[int, HalvesEnded] = OrderedDict()
        self._is_ordered = True
        self._outcomes: dict[TransactionId, HalfOutcome] = {}

    def of(self, transaction: TransactionId) -> HalfOutcome | None:
        """Return how a transaction ended; None when it has not, or that is forgotten."""
        return self._outcomes.get(transaction)

    def all(self) -> dict[TransactionId, HalfOutcome]:
        """Return all outcomes that are remembered."""
        return self._outcomes.copy()

    def remember(self, fact: HalvesEnded, at: int) -> None:
        """Note how some ended, by the fact at a log position."""
        self._facts[at] = fact
        self._changed.add(("halves-ended", at))
        self._outcomes.update(_outcomes(fact))
        while len(self._outcomes) > self._most and len(self._facts) > 1:
            if not self._is_ordered:
                self._facts = OrderedDict(sorted(self._facts.items()))
                self._is_ordered = True
            position, oldest = self._facts.popitem(last=False)
            self._changed.add(("halves-ended", position))
            for transaction, _ in _outcomes(oldest):
                self._outcomes.pop(transaction, None)

    def row(self, at: int) -> HalvesEnded | None:
        """Return the fact at a log position; None when its outcomes are forgotten."""
        return self._facts.get(at)

    def load(self, row: Any, at: int) -> None:
        """Take such a fact of a checkpoint in; they may come in any order."""
        fact = self._facts[at] = msgspec.convert(row, HalvesEnded)
        self._outcomes.update(_outcomes(fact))  # a number is in one fact only
        self._is_ordered = False


def described(transaction: TransactionId) -> str:
    """Return how a transaction with half messages is called in errors."""
    return f"transaction {transaction.number} of producer group {transaction.name[1:]!r}"


def ended(transaction: TransactionId, outcome: HalfOutcome) -> TransactionEnded:
    """Return the error for a call that comes after the end of a transaction."""
    why = {
        HalfOutcome.COMMITTED: "was committed, by an answer of a check or by hand",
        HalfOutcome.ROLLED_BACK: "was rolled back, by its producer, an answer of a check, or by hand",
        HalfOutcome.EXPIRED: "has expired: it was not decided in time, or the broker lost a part of it",
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
