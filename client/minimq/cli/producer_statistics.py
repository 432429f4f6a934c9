"""How the counters of a producer are printed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from minimq.cli.base import Row, show_json, show_table, size_of

if TYPE_CHECKING:
    from minimq.sending.statistics import ProducerStatistics

_QUANTILES = (0.5, 0.9, 0.99, 0.999)


def show_statistics(output: str, told: ProducerStatistics) -> None:
    """Print what a producer counted, as a table or as JSON; latencies in milliseconds."""
    now = time.monotonic()
    latencies = {f"p{share * 100:g}_ms": round(told.latency.quantile_s(share) * 1000, 3) for share in _QUANTILES}
    avoided: list[Row] = [
        {"broker": broker.broker_name, "seconds": round(broker.until - now, 1), "reason": broker.reason}
        for broker in told.avoided
    ]
    counts: dict[str, object] = {
        "acknowledged": told.acknowledged,
        "failed": told.failed,
        "batches": told.batches,
        "bytes": told.bytes,
        "retries": told.retries,
        "already_stored": told.already_stored,
    }
    if output == "json":
        latency = {"mean_ms": round(told.latency.mean_s * 1000, 3), **latencies}
        show_json({**counts, "latency": latency, "avoided": avoided})
        return
    counts["bytes"] = size_of(told.bytes)
    show_table([counts], {key: key.replace("_", " ").capitalize() for key in counts})
    click.echo()
    show_table([latencies], {key: f"{key.removesuffix('_ms')} ms" for key in latencies})
    if avoided:
        click.echo("\nBrokers that are left out:")
        show_table(avoided, {"broker": "Broker", "seconds": "For seconds", "reason": "Reason"})
