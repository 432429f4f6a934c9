"""The metrics of delayed messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from prometheus_client.core import Metric

from minimq_broker.calls.engine import Engine
from minimq_broker.features.delayed.delaying import DelayCounters
from minimq_broker.features.delayed.table import NAME
from minimq_broker.log.clock import now_ms
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_common.errors import SystemBusy
from minimq_common.serving.metrics import counter, gauge, histogram


def delay_metrics(prefix: str, engine: Engine, counted: DelayCounters) -> Iterator[Metric]:
    """Yield the metrics. On the thread of a scrape."""
    name = f"{prefix}_delayed"
    yield counter(f"{name}_stored_total", "Delayed messages that were stored.", engine.counters.delayed_in)
    published = "Delayed messages that were due, and were stored in their queues."
    yield counter(f"{name}_published_total", published, counted.published)
    yield counter(f"{name}_recalled_total", "Delayed messages that were recalled.", counted.recalled)
    with suppress(SystemBusy, *DAMAGE), engine.handle.reading() as store:
        waiting = sum(each.messages for each in store.state.tables[NAME].by_topic.copy().values())
        yield gauge(f"{name}_messages", "Delayed messages that wait until they are due.", waiting)
        next_ms = store.next_due_ms
        yield gauge(
            f"{name}_overdue_seconds",
            "Time since which the next delayed message is due; at a slave, its master publishes it.",
            0.0 if next_ms is None else max(now_ms() - next_ms, 0) / 1000,
        )
    late = "Time from the moment at which a delayed batch was due to its storage in its queue."
    yield histogram(f"{name}_late_seconds", late, counted.late_s)
