"""Counts the transactions of a producer by how they end."""

from __future__ import annotations

import threading

from minimq.sending.statistics import NO_TRANSACTIONS, TransactionTotals


class TransactionCounters:
    """Counts the transactions of one producer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = NO_TRANSACTIONS

    def add(self, *, committed: int = 0, rolled_back: int = 0, failed: int = 0, messages: int = 0) -> None:
        """Count transactions that have ended."""
        with self._lock:
            more = (committed, rolled_back, failed, messages)
            self._totals = TransactionTotals(*map(int.__add__, self._totals, more))

    @property
    def totals(self) -> TransactionTotals:
        """All so far."""
        return self._totals
