"""Delayed messages: rates in and out, with a common due time or one for each message, and their lateness."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import click
from processes import Meter, Workload, anonymous_bytes
from rich.console import Console
from rich.table import Table
from run import MILLION, Row, fresh_cluster, pids

from minimq import Admin, LocalCluster, PullConsumer

TOPIC = "bench"
#: Margin between the end of sending and the due time.
AHEAD_S = 2.0
#: Period over which the due times of single messages spread when their lateness is measured.
SPREAD_S = 10.0
_GIVE_UP_S = 600.0


def stored(admin: Admin) -> int:
    return admin.describe_topic(TOPIC).messages


def published(cluster: LocalCluster, count: int, at: float, name: str) -> Row:
    """Measure how long it takes until the messages that are due at `at` are in their queues."""
    with Admin(cluster.nameserver) as admin:
        time.sleep(max(at - time.time() - 0.05, 0))
        before = stored(admin)
        if before:
            raise SystemExit(f"{before} messages were published before all were stored: raise --ahead")
        with Meter(pids(cluster)) as usage:
            while stored(admin) < count:
                time.sleep(0.01)
                if time.time() > at + _GIVE_UP_S:
                    raise SystemExit(f"only {stored(admin)} of {count} messages were published")
            seconds = time.time() - at
    return Row(name, count / seconds, broker_cpu=usage.server_cpu_s / count * MILLION, others_cpu_s=usage.others_cpu_s)


def sent(cluster: LocalCluster, workload: str, count: int, name: str, processes: int = 1, **more: float) -> Row:
    """Send delayed messages from several processes at once."""
    share = count // processes
    arguments: dict[str, Any] = {"nameserver": cluster.nameserver, "topic": TOPIC, "count": share, **more}
    workloads = [Workload(workload, **arguments) for _ in range(processes)]
    with Meter(pids(cluster)) as usage:
        for each in workloads:
            each.go()
        results = [each.result() for each in workloads]
    cpu = sum(result["cpu_s"] for result in results)
    return Row(
        name,
        count / max(result["seconds"] for result in results),
        client_cpu=cpu / count * MILLION,
        broker_cpu=usage.server_cpu_s / count * MILLION,
        others_cpu_s=usage.others_cpu_s - cpu,
    )


def constant(count: int, ahead_s: float) -> list[Row]:
    """One due time for all messages, so they are sent in large batches."""
    with fresh_cluster() as (cluster, _):
        at = time.time() + ahead_s + count / 100_000
        one = [
            sent(cluster, "delay_many", count, "one due time, in", at=at, after_s=0),
            published(cluster, count, at, "one due time, out"),
        ]
    with fresh_cluster() as (cluster, _):
        return [*one, sent(cluster, "delay_many", count, "one delay, in", at=0, after_s=3_600)]


def lone(count: int, ahead_s: float) -> list[Row]:
    """A due time for each message, so batches have one message; all within half a second, to saturate the broker."""
    with fresh_cluster() as (cluster, _):
        at = time.time() + ahead_s + count / 1_000
        return [
            sent(cluster, "delay_lone", count, "due times of their own, in", processes=2, at=at, spread_s=0.5),
            published(cluster, count, at, "due times of their own, out"),
        ]


def lateness(per_second: int, ahead_s: float) -> list[Row]:
    """The lateness of messages with due times at a steady rate."""
    count = int(per_second * SPREAD_S)
    with fresh_cluster() as (cluster, nameserver):
        at = time.time() + ahead_s + count / 1_000
        sent(cluster, "delay_lone", count, "", processes=2, at=at, spread_s=SPREAD_S)
        late_ms: list[float] = []
        with Meter(pids(cluster)) as usage, PullConsumer(nameserver, group="late") as consumer:
            consumer.subscribe(TOPIC)
            while len(late_ms) < count:
                for message in consumer.poll(timeout=30):
                    assert message.due_at is not None
                    late_ms.append((message.stored_at - message.due_at).total_seconds() * 1000)
        late_ms.sort()
        shown = ", ".join(f"{name} {late_ms[int((count - 1) * share)]:.0f} ms" for name, share in QUANTILES)
        return [
            Row(
                f"lateness at {per_second:,}/s",
                per_second,
                broker_cpu=usage.server_cpu_s / count * MILLION,
                note=shown,
                others_cpu_s=usage.others_cpu_s,
            )
        ]


def waiting(count: int) -> list[Row]:
    """The cost of single messages that wait for a day: memory of the broker, and its start-up time."""
    rows = []
    with fresh_cluster() as (cluster, _):
        [broker] = cluster.brokers
        began = time.perf_counter()
        broker.restart()
        note = f"{time.perf_counter() - began:.2f} s to restart, {anonymous_bytes(pids(cluster)[0]) / 1e6:.0f} MB"
        rows.append(Row("none waits", 0, note=note))
        sent(cluster, "delay_lone", count, "", processes=2, at=time.time() + 86_400, spread_s=86_400)
        memory = anonymous_bytes(pids(cluster)[0])
        began = time.perf_counter()
        broker.restart()
        seconds = time.perf_counter() - began
        after = anonymous_bytes(pids(cluster)[0])
        note = f"{seconds:.2f} s to restart, {memory / 1e6:.0f} MB before and {after / 1e6:.0f} MB after that"
        rows.append(Row(f"{count:,} wait", 0, note=note))
    return rows


QUANTILES = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(["constant", "lone", "lateness", "waiting"]))
@click.option("--count", default=2 * MILLION, show_default=True, help="Messages with one due time.")
@click.option("--lone", "lone_count", default=100_000, show_default=True, help="Messages with due times of their own.")
@click.option(
    "--per-second", default=10_000, show_default=True, help="Messages that are due in a second, for lateness."
)
@click.option("--ahead", "ahead_s", default=AHEAD_S, show_default=True, help="Seconds to spare before they are due.")
@click.option("--security", type=click.Choice(["plain", "tls", "access"]), default="plain", show_default=True)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    names: tuple[str, ...], count: int, lone_count: int, per_second: int, ahead_s: float, security: str, output: str
) -> None:
    """Measure NAMES, or all: a common due time or one for each message, the lateness, and the cost of waiting."""
    del security  # `fresh_cluster` reads it from the command line
    console = Console(stderr=output == "json", width=None if sys.stdout.isatty() else 140)
    parts = {
        "constant": lambda: constant(count, ahead_s),
        "lone": lambda: lone(lone_count, ahead_s),
        "lateness": lambda: lateness(per_second, ahead_s),
        "waiting": lambda: waiting(lone_count),
    }
    rows = [row for name in names or parts for row in parts[name]()]
    if output == "json":
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table("benchmark", "messages/s", "client CPU", "broker CPU", "others' CPU", "")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.per_second:,.0f}" if row.per_second else "",
            "" if row.client_cpu is None else f"{row.client_cpu:.2f} s/M",
            "" if row.broker_cpu is None else f"{row.broker_cpu:.2f} s/M",
            "" if row.others_cpu_s is None else f"{row.others_cpu_s:.1f} s",
            row.note,
        )
    console.print(table)


if __name__ == "__main__":
    main()
