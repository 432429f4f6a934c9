"""Metrics of delayed messages."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from minimq_broker.services.clock import now_ms
from minimq_broker.services.counters import Counters
from minimq_broker.store.message_store import MessageStore
from minimq_common.serving.metrics import counter, gauge, histogram


def delays(prefix: str, store: MessageStore, done: Counters) -> Iterator[Metric]:
    """Yield what is known of delayed messages. The numbers of those that wait are in the state: nothing is counted."""
    waiting = sum(each.messages for each in store.state.delays.by_topic.copy().values())
    yield gauge(f"{prefix}_delayed_messages", "Delayed messages that wait until they are due.", waiting)
    next_ms = store.next_due_ms
    overdue_s = 0.0 if next_ms is None else max(now_ms() - next_ms, 0) / 1000
    yield gauge(
        f"{prefix}_delayed_overdue_seconds",
        "Time since which the next delayed message is due; at a slave, its master publishes it.",
        overdue_s,
    )
    yield counter(f"{prefix}_delayed_stored_total", "Delayed messages that were stored.", done.delayed_in)
    yield counter(
        f"{prefix}_delayed_published_total",
        "Delayed messages that were due, and were stored in their queues.",
        done.delayed_published,
    )
    yield counter(f"{prefix}_delayed_recalled_total", "Delayed messages that were recalled.", done.delayed_recalled)
    yield counter(
        f"{prefix}_delayed_batches_lost_total",
        "Delayed batches that could not be read when they were due.",
        done.delayed_lost,
    )
    yield histogram(
        f"{prefix}_delayed_late_seconds",
        "Time from the moment at which a delayed batch was due to its storage in its queue.",
        done.delayed_late_s,
    )
