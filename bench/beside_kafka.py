"""Compares minimq with Kafka on this machine, in turn: single sends, latency from send to poll, and bulk throughput.

Both sync single sends to disk, Kafka's topic with `flush.messages=1`. In bulk, Kafka acknowledges messages in the page
cache, which is its default; minimq acknowledges messages on disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka_server import KafkaServer
from processes import Meter, Workload, run
from rich.console import Console
from rich.table import Table

from minimq import Admin, LocalCluster

QUEUES = 8


@dataclass
class Side:
    """One of the two systems: its broker and how to reach it."""

    script: str
    pid: int
    address: dict[str, str]

    def alone(self, name: str, **arguments: Any) -> dict[str, float]:
        """Run a workload; return its results and the broker's CPU time."""
        with Meter([self.pid]) as usage:
            result = run(name, script=self.script, **self.address, **arguments)
        return {**result, "broker_s": usage.server_cpu_s}

    def paced(self, topic: str, count: int) -> dict[str, float]:
        """Send 200 messages per second; return their latencies from send to poll."""
        receiver = Workload("receive_paced", script=self.script, **self.address, topic=topic, count=count)
        sender = Workload("send_paced", script=self.script, **self.address, topic=topic, count=count, rate=200)
        receiver.go()
        sender.go()
        sender.result()
        return receiver.result()


@dataclass
class Figures:
    """Results of all rounds, by name: those of minimq, and those of Kafka."""

    found: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)

    def add(self, side: int, name: str, value: float) -> None:
        self.found.setdefault(name, ([], []))[side].append(value)


@contextmanager
def minimq_side(folder: Path) -> Iterator[Side]:
    """Start minimq with the topics of the workloads."""
    with LocalCluster(brokers=1, data_dir=folder) as cluster, Admin(cluster.nameserver) as admin:
        for topic, queues in (("synced", QUEUES), ("paced", 1), ("small", QUEUES), ("large", QUEUES)):
            admin.create_topic(topic, queues=queues)
        [pid] = [broker.pid for broker in cluster.brokers if broker.pid is not None]
        yield Side("workloads.py", pid, {"nameserver": cluster.nameserver})


@contextmanager
def kafka_side(folder: Path, jars: Path) -> Iterator[Side]:
    """Start Kafka with the topics of the workloads."""
    with KafkaServer(jars, folder, QUEUES) as server:
        client = AdminClient({"bootstrap.servers": server.address})
        synced = {"flush.messages": "1"}
        made = client.create_topics(
            [
                NewTopic("synced", QUEUES, 1, config=synced),
                NewTopic("paced", 1, 1, config=synced),
                NewTopic("small", QUEUES, 1),
                NewTopic("large", QUEUES, 1),
            ]
        )
        for future in made.values():
            future.result()
        yield Side("kafka_workloads.py", server.pid, {"address": server.address})


def measure(side: Side, which: int, share: float, figures: Figures) -> None:
    """Run all workloads of one round on one side."""
    side.alone("send_one_by_one", topic="synced", count=int(10_000 * share))  # warms up Java's JIT compiler
    lone = side.alone("send_one_by_one", topic="synced", count=int(5000 * share))
    figures.add(which, "lone send, synced: messages/s", lone["count"] / lone["seconds"])
    figures.add(which, "lone send: p50, ms", lone["p50_ms"])
    figures.add(which, "lone send: p99, ms", lone["p99_ms"])
    figures.add(which, "lone send: client CPU, ms", lone["cpu_s"] / lone["count"] * 1000)
    figures.add(which, "lone send: broker CPU, ms", lone["broker_s"] / lone["count"] * 1000)
    paced = side.paced("paced", int(2000 * share))
    figures.add(which, "send to poll at 200/s: p50, ms", paced["p50_ms"])
    figures.add(which, "send to poll at 200/s: p99, ms", paced["p99_ms"])
    for topic, size, count in (("small", 100, int(2_000_000 * share)), ("large", 1024, int(500_000 * share))):
        for name, more in (("produce", {"size": size}), ("consume", {"group": "reader"})):
            bulk = side.alone(name, topic=topic, count=count, **more)
            what = f"{name}, {size} B"
            figures.add(which, f"{what}: messages/s", count / bulk["seconds"])
            figures.add(which, f"{what}: client CPU, s per million", bulk["cpu_s"] / count * 1e6)
            figures.add(which, f"{what}: broker CPU, s per million", bulk["broker_s"] / count * 1e6)


@click.command()
@click.option(
    "--jars", type=click.Path(path_type=Path), default=".venv/kafka", show_default=True, help="Folder of Kafka's jars."
)
@click.option("--rounds", default=3, show_default=True, help="How often; medians are shown.")
@click.option("--share", default=1.0, show_default=True, help="Of the usual numbers of messages.")
def main(jars: Path, rounds: int, share: float) -> None:
    """Measure minimq and Kafka in turn, each with an empty broker and single-process clients."""
    figures = Figures()
    console = Console(width=140)
    for number in range(rounds):
        with console.status(f"round {number + 1} of {rounds} ..."):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                with tempfile.TemporaryDirectory(prefix="minimq-bench-") as name:
                    folder = Path(name)
                    with minimq_side(folder) if which == 0 else kafka_side(folder, jars / "server") as side:
                        measure(side, which, share, figures)
    table = Table("", "minimq", "Kafka", "ratio", title=f"medians of {rounds} rounds")
    for what, (ours, theirs) in figures.found.items():
        mine, other = median(ours), median(theirs)
        digits = 0 if mine > 100 else 2
        table.add_row(what, f"{mine:,.{digits}f}", f"{other:,.{digits}f}", f"{mine / other:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
