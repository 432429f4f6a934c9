"""The outcomes of transactions with half messages. An outcome is final; the latest ones are remembered.

Their numbers are random, so a decision concerns only its own number, not earlier ones.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from minimq_broker.core.facts import HalfEnded
from minimq_broker.core.held.staged_batches import HalfOutcome, TransactionId
from minimq_common.errors import TransactionEnded

#: Remembered outcomes; they take 20 MB of memory.
MAX_OUTCOMES = 100_000


class HalfOutcomes:
    """The latest outcomes, each a row of the checkpoint."""

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
    """Return the error for a request about a transaction that has already ended."""
    why = {
        HalfOutcome.COMMITTED: "was committed, by an answer of a check or by hand",
        HalfOutcome.ROLLED_BACK: "was rolled back, by its producer, an answer of a check, or by hand",
        HalfOutcome.EXPIRED: "has expired: it was not decided in time, or the broker lost a part of it",
    }[outcome]
    return TransactionEnded(f"{described(transaction)} {why}: that outcome stands")
