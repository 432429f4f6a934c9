"""The main benchmarks: real processes on this machine, one table.

Rates depend on the load of the machine; CPU seconds per million messages are more stable. Compare two versions in one
session, and check the column with the CPU of other processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import click
from processes import Meter, Workload, anonymous_bytes, run
from rich.console import Console
from rich.table import Table
from spark_scan import spark_scan

from minimq import Admin, LocalCluster
from minimq.local.certificate_authority import CertificateAuthority
from minimq_common.security.server_secrets import ACCESS, CLUSTER_KEY

MILLION = 1_000_000


@dataclass
class Row:
    """One line of the table. CPU is in seconds per million messages."""

    name: str
    per_second: float
    megabytes_per_second: float | None = None
    client_cpu: float | None = None
    broker_cpu: float | None = None
    note: str = ""
    others_cpu_s: float | None = None


@contextmanager
def fresh_cluster() -> Iterator[tuple[LocalCluster, str]]:
    """Run one broker in an empty directory with one topic of 8 queues, and the security of the command's option."""
    security = click.get_current_context().params["security"]
    with tempfile.TemporaryDirectory(prefix="minimq-bench-") as folder, ExitStack() as opened:
        if security == "tls":
            authority = CertificateAuthority(Path(folder) / "secrets")
            authority.init([], [])
            for name in (CLUSTER_KEY, ACCESS):
                (authority.server / name).unlink()
        cluster = opened.enter_context(LocalCluster(brokers=1, data_dir=Path(folder), secure=security != "plain"))
        # The workloads, which are processes, read this variable.
        opened.enter_context(patch.dict(os.environ, MINIMQ_CREDENTIALS=str(cluster.credentials or "")))
        opened.enter_context(Admin(cluster.nameserver)).create_topic("bench", queues=8)
        yield cluster, cluster.nameserver


def pids(cluster: LocalCluster) -> list[int]:
    """Return the process ids of the brokers."""
    return [broker.pid for broker in cluster.brokers if broker.pid is not None]


def produced(cluster: LocalCluster, count: int, size: int, processes: int = 1) -> Row:
    """Produce from several concurrent processes."""
    share = count // processes
    arguments: dict[str, Any] = {"nameserver": cluster.nameserver, "topic": "bench", "count": share, "size": size}
    workloads = [Workload("produce", **arguments) for _ in range(processes)]
    with Meter(pids(cluster)) as usage:
        for workload in workloads:
            workload.go()
        results = [workload.result() for workload in workloads]
    seconds = max(result["seconds"] for result in results)
    cpu = sum(result["cpu_s"] for result in results)
    return Row(
        f"produce {size} B, {processes} process{'es' if processes > 1 else ''}",
        count / seconds,
        count * size / seconds / 1e6,
        cpu / count * MILLION,
        usage.server_cpu_s / count * MILLION,
        others_cpu_s=usage.others_cpu_s - cpu,
    )


def consumed(cluster: LocalCluster, count: int, size: int, group: str = "reader") -> Row:
    """Consume everything with one process."""
    with Meter(pids(cluster)) as usage:
        result = run("consume", nameserver=cluster.nameserver, topic="bench", group=group, count=count)
    return Row(
        f"consume {size} B",
        count / result["seconds"],
        result["bytes"] / result["seconds"] / 1e6,
        result["cpu_s"] / count * MILLION,
        usage.server_cpu_s / count * MILLION,
        others_cpu_s=usage.others_cpu_s - result["cpu_s"],
    )


def throughput(size: int, count: int) -> list[Row]:
    with fresh_cluster() as (cluster, _):
        return [produced(cluster, count, size), consumed(cluster, count, size)]


def four_producers() -> list[Row]:
    """Four producer processes on one broker."""
    with fresh_cluster() as (cluster, _):
        return [produced(cluster, 4 * MILLION, 100, processes=4)]


def backlog() -> list[Row]:
    """Rates, memory and disk with one and with five million messages stored."""
    rows = []
    with fresh_cluster() as (cluster, _):
        [pid], stored, memory = pids(cluster), 0, []
        row = Row("", 0)
        for wanted in (1, 5):
            for _ in range(wanted - stored // MILLION):
                row = produced(cluster, MILLION, 100)
                stored += MILLION
            reader = consumed(cluster, MILLION, 100, group=f"reader-{wanted}")
            memory.append(anonymous_bytes(pid))
            log = Path(cluster.brokers[0].data_dir, "commitlog")
            disk = sum(file.stat().st_blocks * 512 for file in log.glob("*.mdb"))
            row.name, reader.name = f"produce at {wanted} M stored", f"consume at {wanted} M stored"
            row.note = f"{memory[-1] / 1e6:.0f} MB resident, {disk / stored:.1f} B of disk per message"
            rows += [row, reader]
    return rows


def single() -> list[Row]:
    """Sends one after the other, and the latency from send to receive."""
    with fresh_cluster() as (cluster, nameserver):
        with Meter(pids(cluster)) as usage:
            one = run("send_one_by_one", nameserver=nameserver, topic="bench", count=5000)
        rate = one["count"] / one["seconds"]
        rows = [
            Row(
                "send, one after the other",
                rate,
                client_cpu=one["cpu_s"] / one["count"] * MILLION,
                broker_cpu=usage.server_cpu_s / one["count"] * MILLION,
                note=f"{1000 / rate:.2f} ms each, p50 {one['p50_ms']:.2f} ms, p99 {one['p99_ms']:.2f} ms",
                others_cpu_s=usage.others_cpu_s - one["cpu_s"],
            )
        ]
        with Admin(nameserver) as admin:
            admin.create_topic("paced", queues=1)
        receiver = Workload("receive_paced", nameserver=nameserver, topic="paced", count=2000)
        sender = Workload("send_paced", nameserver=nameserver, topic="paced", count=2000, rate=200)
        receiver.go()
        sender.go()
        sender.result()
        paced = receiver.result()
        note = ", ".join(f"{key[:-3]} {paced[key]:.2f} ms" for key in ("p50_ms", "p90_ms", "p99_ms", "max_ms"))
        rows.append(Row("send to receive at 200/s", 200, note=note))
    return rows


def measured(cluster: LocalCluster, name: str, workload: str, count: int, **more: object) -> Row:
    """Run a workload without a `size`."""
    with Meter(pids(cluster)) as usage:
        result = run(workload, nameserver=cluster.nameserver, topic="bench", count=count, **more)
    done = result["count"]
    return Row(
        name,
        done / result["seconds"],
        client_cpu=result["cpu_s"] / done * MILLION,
        broker_cpu=usage.server_cpu_s / done * MILLION,
        note=f"{result['threads']} threads" if "threads" in result else "",
        others_cpu_s=usage.others_cpu_s - result["cpu_s"],
    )


def coroutine() -> list[Row]:
    """Single sends from a thread and from a coroutine."""
    with fresh_cluster() as (cluster, _):
        return [
            measured(cluster, "send, from a thread", "send_one_by_one", 5000),
            measured(cluster, "send, from a coroutine", "send_one_by_one_aio", 5000),
        ]


def unwaited() -> list[Row]:
    """Pipelined single sends: `send_async`, and `gather` over the sends of aio."""
    with fresh_cluster() as (cluster, _):
        return [
            measured(cluster, "send_async", "send_async", 500_000),
            measured(cluster, "gather, 5,000 at once", "gather", 500_000),
        ]


def push() -> list[Row]:
    """Listeners that do nothing, as functions and as coroutines; and a thousand coroutines that sleep concurrently."""
    with fresh_cluster() as (cluster, _):
        produced(cluster, 500_000, 100)
        return [
            measured(cluster, "PushConsumer", "push", 500_000, group="plain"),
            measured(cluster, "PushConsumer of aio", "push_aio", 500_000, group="aio"),
            measured(
                cluster, "1,000 listeners sleep 100 ms", "push_aio", 50_000, group="asleep", at_once=1000, sleep_s=0.1
            ),
        ]


def spark() -> list[Row]:
    """Spark reads of a full topic; client CPU includes the driver, Java and the Python workers."""
    return [
        Row(
            f"Spark {result.query}",
            result.rows_per_s,
            client_cpu=result.spark_cpu_s / result.rows * MILLION,
            broker_cpu=result.broker_cpu_s / result.rows * MILLION,
        )
        for result in spark_scan(runs=1)
        if result.rows > MILLION  # leaves out the first query, which reads eight messages
    ]


BENCHMARKS: dict[str, Callable[[], list[Row]]] = {
    "small": lambda: throughput(100, 3 * MILLION),
    "large": lambda: throughput(1024, 600_000),
    "producers": four_producers,
    "backlog": backlog,
    "single": single,
    "spark": spark,
    "coroutine": coroutine,
    "unwaited": unwaited,
    "push": push,
}
#: The default benchmarks.
USUAL = ("small", "large", "producers", "backlog", "single", "spark")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--runs", default=3, show_default=True, help="How often; the run with the median rate is shown.")
@click.option(
    "--security",
    type=click.Choice(["plain", "tls", "access"]),
    default="plain",
    show_default=True,
    help="Without TLS; with TLS; with TLS, keys and rules. That of Spark is always plain.",
)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(names: tuple[str, ...], runs: int, security: str, output: str) -> None:
    """Run the benchmarks NAMES, or small, large, producers, backlog, single and spark."""
    console = Console(stderr=output == "json", width=None if sys.stdout.isatty() else 140)
    rows: list[Row] = []
    for name in names or USUAL:
        with console.status(f"{name} ..."):
            tries = [BENCHMARKS[name]() for _ in range(runs)]
        for same in zip(*tries, strict=True):
            middle = median(row.per_second for row in same) if runs % 2 else same[0].per_second
            rows.append(next(row for row in same if row.per_second == middle))
    if output == "json":
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table("benchmark", "messages/s", "MB/s", "client CPU", "broker CPU", "others' CPU", "")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.per_second:,.0f}",
            "" if row.megabytes_per_second is None else f"{row.megabytes_per_second:.0f}",
            "" if row.client_cpu is None else f"{row.client_cpu:.2f} s/M",
            "" if row.broker_cpu is None else f"{row.broker_cpu:.2f} s/M",
            "" if row.others_cpu_s is None else f"{row.others_cpu_s:.1f} s",
            row.note,
        )
    console.print(f"\nmedian of {runs}; security: {security}; data in {tempfile.gettempdir()}")
    console.print(table)


if __name__ == "__main__":
    main()
