"""Spark reads of a topic: rows per second, and CPU seconds of Spark and of the brokers.

    python bench/spark_scan.py [small large skewed] [--runs 3] [--cores 2] [--check]

`small` has bodies of 100 bytes, `large` of 1 KiB. In `skewed` one of eight queues has all messages, and still all cores
should be used: see `cores_busy`, the average number of cores that Spark uses. `--check` only checks that everything
runs.

The first line is the fixed cost of a query: planning, and a task for each of eight queues with one message. The other
queries have too many rows for it to matter.

Everything runs on this machine, so the brokers share its cores with Spark, and the log is in its page cache. On a busy
machine, compare `cpu_s_per_million`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from process_tree import descendants
from processes import cpu_seconds_with_children
from pyspark.sql import DataFrame, SparkSession

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer

TOPIC = "scan"
#: The topic whose messages have properties, too.
RICH = "scan-rich"
#: The topic with one message in each queue.
FEW = "scan-few"
QUEUES = 8
#: Messages per call of `send_many`.
SLICE = 500_000


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The median run of one query."""

    query: str
    rows: int
    seconds: float
    rows_per_s: float
    megabytes_per_s: float
    spark_cpu_s: float
    broker_cpu_s: float
    tasks: int

    @property
    def cores_busy(self) -> float:
        """The average number of cores that Spark has used."""
        return self.spark_cpu_s / self.seconds

    @property
    def cpu_s_per_million(self) -> float:
        """CPU seconds of Spark and of the brokers per million rows."""
        return (self.spark_cpu_s + self.broker_cpu_s) / self.rows * 1e6


@dataclass(frozen=True, slots=True)
class Scenario:
    """The messages to store."""

    messages: int
    body_bytes: int
    queues: int = QUEUES

    def rows(self, topic: str) -> int:
        return {TOPIC: self.messages, RICH: self.messages // 2, FEW: QUEUES}[topic]


SCENARIOS = {
    "small": Scenario(8_000_000, 100),
    "large": Scenario(2_000_000, 1024),
    "skewed": Scenario(10_000_000, 100, queues=1),
}


def discard(frame: DataFrame) -> None:
    """Compute all rows and discard them."""
    frame.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True)
class Query:
    """A query: the columns to read, None for all, and the action on them."""

    name: str
    columns: str | None
    action: Callable[[DataFrame], object] = discard
    topic: str = TOPIC


QUERIES = (
    Query("nothing but a message in each queue", "offset bigint, body binary", topic=FEW),
    Query("offset and body", "offset bigint, body binary"),
    Query("four columns", "offset bigint, body binary, tag string, store_timestamp timestamp"),
    Query("all columns, two properties", None, topic=RICH),
    Query("sum over body", "body binary", lambda frame: frame.selectExpr("sum(length(body))").collect()),
    Query("count", "offset bigint", lambda frame: frame.count()),
)


def spark_scan(
    messages: int | None = None, body_bytes: int | None = None, runs: int = 3, cores: int = 2, scenario: str = "small"
) -> list[ScanResult]:
    """Fill a topic and read it with each query: once to warm up, then `runs` times.

    Args:
        messages: number of messages, each with a tag and a key; None for that of the scenario.
        body_bytes: bytes per body; None for that of the scenario.
        runs: number of runs; the median is returned.
        cores: number of cores for Spark.
        scenario: one of `SCENARIOS`.
    """
    given = SCENARIOS[scenario]
    chosen = Scenario(messages or given.messages, body_bytes or given.body_bytes, given.queues)
    queries = [query for query in QUERIES if scenario == "small" or query.topic != RICH]
    with LocalCluster(brokers=1) as cluster, spark_on(cores) as spark:
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
            for topic in {query.topic for query in queries}:
                admin.create_topic(topic, queues=QUEUES)
                queues = QUEUES if topic == FEW else chosen.queues
                fill(producer, topic, chosen.rows(topic), chosen.body_bytes, queues)
        return [_measure(spark, cluster, chosen.rows(query.topic), chosen.body_bytes, runs, query) for query in queries]


def fill(producer: Producer, topic: str, count: int, size: int, queues: int) -> None:
    """Send messages evenly to the first `queues` queues."""
    for queue in range(queues):
        share = count * (queue + 1) // queues - count * queue // queues
        for first in range(0, share, SLICE):  # bounds the receipts in memory
            sent = tagged(topic, min(SLICE, share - first), size)
            producer.send_many(sent, queue=MessageQueue(topic, "broker-a", queue))


def tagged(topic: str, count: int, size: int) -> Iterator[Message]:
    """Yield messages with a tag and a key, and with two properties for the topic `RICH`."""
    tags = [f"tag-{number}" for number in range(10)]
    for number in range(count):
        properties = {"region": "eu", "number": str(number)} if topic == RICH else {}
        yield Message(topic, b"%0*d" % (size, number), tags[number % 10], (f"key-{number}",), properties)


@contextmanager
def spark_on(cores: int) -> Iterator[SparkSession]:
    """Run Spark on this machine during the block."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _measure(
    spark: SparkSession, cluster: LocalCluster, rows: int, body_bytes: int, runs: int, query: Query
) -> ScanResult:
    results = []
    for _ in range(runs + 1):
        source = spark.read.format("minimq").option("nameserver", cluster.nameserver).option("topic", query.topic)
        before, started = cpu_seconds(cluster), time.monotonic()
        frame = (source.schema(query.columns) if query.columns else source).load()
        query.action(frame)
        seconds, after = time.monotonic() - started, cpu_seconds(cluster)
        spark_s, broker_s = (end - start for start, end in zip(before, after, strict=True))
        speed, tasks = rows / seconds, frame.rdd.getNumPartitions()
        results.append(ScanResult(query.name, rows, seconds, speed, speed * body_bytes / 1e6, spark_s, broker_s, tasks))
    middle = statistics.median_low(result.seconds for result in results[1:])
    return next(result for result in results[1:] if result.seconds == middle)


def cpu_seconds(cluster: LocalCluster) -> tuple[float, float]:
    """Return the CPU seconds of this process and its descendants without the cluster, and those of the cluster."""

    def total(pids: Iterable[int]) -> float:
        found = {pid for root in pids for pid in (root, *(each.pid for each in descendants(root)))}
        return sum(map(cpu_seconds_with_children, found))

    servers = total(server.pid for server in (*cluster.brokers, *cluster.nameservers) if server.pid)
    return total([os.getpid()]) - servers, servers


def main() -> None:
    """Print the results as a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--messages", type=int, help="how many, if not as many as the scenario has")
    parser.add_argument("--body-bytes", type=int, help="length of each, if not as in the scenario")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="few messages, one run: sees that it works")
    given = parser.parse_args()
    for scenario in given.scenarios or SCENARIOS:
        messages, runs = (20_000, 1) if given.check else (given.messages, given.runs)
        for result in spark_scan(messages, given.body_bytes, runs, given.cores, scenario):
            ratios = {"cores_busy": result.cores_busy}
            if result.rows > QUEUES:
                ratios["cpu_s_per_million"] = result.cpu_s_per_million
            print(json.dumps({"scenario": scenario, **rounded(asdict(result) | ratios)}), flush=True)


def rounded(values: dict[str, object]) -> dict[str, object]:
    """Return values rounded to two digits."""
    return {key: round(value, 2) if isinstance(value, float) else value for key, value in values.items()}


if __name__ == "__main__":
    main()
