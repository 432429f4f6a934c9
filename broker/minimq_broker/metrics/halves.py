"""Metrics of half messages."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from minimq_broker.core.held.half_outcomes import HalfOutcome
from minimq_broker.services.clock import now_ms
from minimq_broker.services.counters import Counters
from minimq_broker.store.message_store import MessageStore
from minimq_common.serving.metrics import counter, counters, gauge


def halves(prefix: str, store: MessageStore, done: Counters) -> Iterator[Metric]:
    """Yield the metrics of half messages."""
    table = [*store.state.transactions.open_halves().values()]
    oldest_ms = min((half.stage.began_ms for half in table), default=None)
    yield gauge(f"{prefix}_half_transactions", "Transactions with half messages that have not ended.", len(table))
    yield gauge(
        f"{prefix}_half_transactions_undecided",
        "Those about which no producer is asked any more: somebody has to decide by hand.",
        done.halves_undecided,
    )
    yield gauge(
        f"{prefix}_half_oldest_seconds",
        "Age of the oldest transaction with half messages; its files are kept.",
        0.0 if oldest_ms is None else max(now_ms() - oldest_ms, 0) / 1000,
    )
    yield counters(
        f"{prefix}_half_transactions_ended_total",
        "Transactions with half messages that ended: committed, rolled back, or expired.",
        ("outcome",),
        (((str(outcome),), done.halves_ended[str(outcome)]) for outcome in HalfOutcome),
    )
    yield counter(
        f"{prefix}_half_checks_total",
        "Questions to producers how a transaction with half messages ends.",
        done.half_checks,
    )
