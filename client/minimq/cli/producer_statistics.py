"""Printing of the counters of a producer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from minimq.cli.base import show_json
from minimq.cli.table import show_table
from minimq.operations.operation import Row, Table, columns
from minimq.operations.words import size_of

if TYPE_CHECKING:
    from minimq.sending.statistics import ProducerStatistics

_QUANTILES = (0.5, 0.9, 0.99, 0.999)

_COUNTS = Table("nothing was counted", columns("acknowledged failed batches bytes retries already_stored"))
_LATENCIES = Table("nothing was measured", {f"p{share * 100:g}_ms": f"p{share * 100:g} ms" for share in _QUANTILES})
_AVOIDED = Table("no brokers", columns("broker seconds reason", seconds="For seconds"))


def show_statistics(output: str, told: ProducerStatistics) -> None:
    """Print what a producer counted, as a table or as JSON; latencies in milliseconds."""
    now = time.monotonic()
    latencies = {f"p{share * 100:g}_ms": round(told.latency.quantile_s(share) * 1000, 3) for share in _QUANTILES}
    avoided: list[Row] = [
        {
            "broker": broker.broker_name,
            "seconds": None if broker.unreachable else round(broker.until - now, 1),  # until it answers
            "reason": broker.reason,
        }
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
    show_table(_COUNTS, [counts])
    click.echo()
    show_table(_LATENCIES, [latencies])
    if avoided:
        click.echo("\nAvoided brokers:")
        show_table(_AVOIDED, avoided)
