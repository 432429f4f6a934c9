"""Reads topics into Polars: rows per second, CPU and memory.

    make bench-arrow [ARGS="--messages 5000000 --size 100 --runs 3"]

One broker, one topic of eight queues, bodies of `--size` bytes. `read` iterates over the batches and counts rows;
`frame` makes one Polars frame; `messages` polls the same messages as Python objects, for comparison. CPU is in seconds
of this process and of the broker per million rows; memory is the growth of this process's resident memory to its peak.
With `--jars` and confluent-kafka installed, `kafka` makes the same frame from Kafka, in the only way that its client
offers: a list of messages.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click
import polars as pl
import pyarrow as pa
from kafka_server import KafkaServer
from processes import cpu_seconds

import minimq.arrow
from minimq import Admin, LocalCluster, Producer, PullConsumer

with suppress(ImportError):  # only for a comparison
    import confluent_kafka

_PART = 500_000


def fill(nameserver: str, messages: int, size: int) -> float:
    """Send rows of random bytes; return the duration in seconds."""
    body = pa.array([os.urandom(size) for _ in range(1_000)], pa.binary())
    part = pa.table({"body": pa.concat_arrays([body] * (_PART // 1_000))})
    with Producer(nameserver, compression="none") as producer:
        began = time.perf_counter()
        for _ in range(messages // _PART):
            producer.send_arrow("t", part)
        return time.perf_counter() - began


def read(nameserver: str, _: int) -> int:
    return sum(batch.num_rows for batch in minimq.arrow.read("t", nameserver, columns=["body", "offset"]))


def frame(nameserver: str, _: int) -> int:
    found = pl.from_arrow(minimq.arrow.read_table("t", nameserver, columns=["body", "offset"]))
    return len(found)


def polled(nameserver: str, count: int) -> int:
    with PullConsumer(nameserver, group=f"bench-{time.monotonic_ns()}", start="earliest") as consumer:
        consumer.subscribe("t")
        rows = 0
        while rows < count:
            rows += consumer.poll_arrow(10.0, columns=["body", "offset"]).num_rows
        return rows


def messages(nameserver: str, count: int) -> int:
    with PullConsumer(nameserver, group=f"bench-{time.monotonic_ns()}", start="earliest") as consumer:
        consumer.subscribe("t")
        rows = 0
        while rows < count:
            rows += len(consumer.poll(10.0, 1 << 16))
        return rows


class Kafka:
    """Fills Kafka with the same rows, and makes a frame of them."""

    def __init__(self, server: KafkaServer) -> None:
        self._address = server.address

    def fill(self, count: int, size: int) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self._address, "linger.ms": 20})
        bodies = [os.urandom(size) for _ in range(1_000)]
        for number in range(count):
            while True:
                try:
                    producer.produce("t", bodies[number % 1_000])
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 10_000 == 0:
                producer.poll(0)
        producer.flush()

    def frame(self, group: str, count: int) -> int:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._address, "group.id": group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        bodies, offsets = list[bytes | None](), list[int | None]()
        while len(bodies) < count:
            found = consumer.consume(10_000, 10.0)
            bodies += [message.value() for message in found]
            offsets += [message.offset() for message in found]
        made = pl.DataFrame({"body": bodies, "offset": offsets})
        consumer.close()
        return len(made)


def resident_mb() -> float:
    statm = Path(f"/proc/{os.getpid()}/statm").read_text()
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class PeakMemory:
    """Measures how far the resident memory of this process grows during the block."""

    def __enter__(self) -> PeakMemory:
        self._before = self.most = resident_mb()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, resident_mb())

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.grown_mb = self.most - self._before


@click.command()
@click.option("--messages", "count", default=5_000_000)
@click.option("--size", default=100)
@click.option("--runs", default=3)
@click.option("--jars", type=click.Path(path_type=Path), help="Kafka's, to compare with it.")
def main(count: int, size: int, runs: int, jars: Path | None) -> None:
    """Print the results as lines of JSON."""
    count -= count % _PART
    if jars is not None:
        with TemporaryDirectory() as folder, KafkaServer(jars, Path(folder), 8) as server:
            kafka = Kafka(server)
            kafka.fill(count, size)
            measure("kafka", lambda number: kafka.frame(f"bench-{number}", count), count, runs, server.pid)
    with LocalCluster(brokers=1) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=8)
        print(json.dumps({"send_arrow_per_s": round(count / fill(cluster.nameserver, count, size))}), flush=True)
        broker = cluster.brokers[0].pid or 0
        ways: list[Callable[[str, int], int]] = [read, frame, polled, messages]
        for way in ways:
            measure(way.__name__, lambda _, way=way: way(cluster.nameserver, count), count, runs, broker)  # type: ignore[misc]


def measure(name: str, way: Callable[[int], int], count: int, runs: int, broker: int) -> None:
    """Run `way` several times, and print the medians."""
    rates, own, theirs, grown = [], [], [], []
    for number in range(runs):
        before, began = (cpu_seconds(os.getpid()), cpu_seconds(broker)), time.perf_counter()
        with PeakMemory() as highest:
            assert way(number) >= count
        rates.append(count / (time.perf_counter() - began))
        own.append((cpu_seconds(os.getpid()) - before[0]) / count * 1e6)
        theirs.append((cpu_seconds(broker) - before[1]) / count * 1e6)
        grown.append(highest.grown_mb)
    line = {
        "way": name,
        "rows_per_s": round(median(rates)),
        "client_cpu_s_per_million": round(median(own), 2),
        "broker_cpu_s_per_million": round(median(theirs), 2),
        "grown_mb": round(max(grown)),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
