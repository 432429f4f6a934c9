"""How fast Spark reads a topic, and what that costs: rows a second, and CPU seconds of Spark and of the brokers.

    python bench/spark_scan.py [--messages 2000000] [--body-bytes 100] [--runs 3]

Everything runs on this machine, so the brokers share its cores with Spark, and what is read is in its page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from minimq import Admin, LocalCluster, Message, Producer

TOPIC = "scan"
#: Every column but the properties.
WIDE = (
    "topic string, broker_name string, queue_id int, offset bigint, body binary, tag string, keys array<string>, "
    "born_timestamp timestamp, store_timestamp timestamp, message_id string"
)


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The median run of one query.

    Attributes:
        query: what it does.
        rows: messages read.
        seconds: from the call to the end, planning included.
        rows_per_s: rows a second.
        spark_cpu_s: CPU seconds of the driver, Java and the Python workers.
        broker_cpu_s: CPU seconds of all brokers and name servers.
    """

    query: str
    rows: int
    seconds: float
    rows_per_s: float
    spark_cpu_s: float
    broker_cpu_s: float


def discard(frame: DataFrame) -> None:
    """Compute all rows and keep none."""
    frame.write.format("noop").mode("overwrite").save()


#: Name, columns, and what is done with them.
QUERIES: tuple[tuple[str, str, Callable[[DataFrame], object]], ...] = (
    ("all columns but properties", WIDE, discard),
    ("offset and body", "offset bigint, body binary", discard),
    ("sum over body", "body binary", lambda frame: frame.selectExpr("sum(length(body))").collect()),
)


def spark_scan(messages: int = 2_000_000, body_bytes: int = 100, runs: int = 3, cores: int = 2) -> list[ScanResult]:
    """Fill a topic and read it with each query: once to warm up, then `runs` times.

    Args:
        messages: how many, each with a tag and a key.
        body_bytes: length of each body.
        runs: of which the median counts.
        cores: that Spark may use.
    """
    with LocalCluster(brokers=1) as cluster, spark_on(cores) as spark:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=2 * cores)
        with Producer(cluster.nameserver) as producer:
            producer.send_many(tagged(messages, body_bytes))
        return [_measure(spark, cluster, messages, runs, *query) for query in QUERIES]


def tagged(count: int, body_bytes: int) -> Iterator[Message]:
    """Yield messages with a tag and a key."""
    tags = [f"tag-{number}" for number in range(10)]
    for number in range(count):
        yield Message(TOPIC, b"%0*d" % (body_bytes, number), tag=tags[number % 10], keys=(f"key-{number}",))


@contextmanager
def spark_on(cores: int) -> Iterator[SparkSession]:
    """Start Spark on this machine."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _measure(
    spark: SparkSession,
    cluster: LocalCluster,
    rows: int,
    runs: int,
    query: str,
    schema: str,
    action: Callable[[DataFrame], object],
) -> ScanResult:
    results = []
    for _ in range(runs + 1):
        source = spark.read.format("minimq").option("nameserver", cluster.nameserver).option("topic", TOPIC)
        before, started = _cpu_seconds(cluster), time.monotonic()
        action(source.schema(schema).load())
        seconds, after = time.monotonic() - started, _cpu_seconds(cluster)
        spark_s, broker_s = (end - start for start, end in zip(before, after, strict=True))
        results.append(ScanResult(query, rows, seconds, rows / seconds, spark_s, broker_s))
    middle = statistics.median_low(result.seconds for result in results[1:])
    return next(result for result in results[1:] if result.seconds == middle)


def _cpu_seconds(cluster: LocalCluster) -> tuple[float, float]:
    """Return the CPU seconds so far of this process and all it has started but the cluster, and of the cluster."""
    children: dict[int, list[int]] = defaultdict(list)
    spent: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # ended a moment ago
            continue
        pid = int(stat.parent.name)
        children[int(fields[1])].append(pid)
        # Its own time, and that of children which have ended.
        spent[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def total(pids: Iterable[int]) -> float:
        return sum(spent.get(pid, 0.0) + total(children[pid]) for pid in pids)

    servers = total(server.pid for server in (*cluster.brokers, *cluster.nameservers) if server.pid)
    return total([os.getpid()]) - servers, servers


def main() -> None:
    """Print the results as a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    for result in spark_scan(arguments.messages, arguments.body_bytes, arguments.runs):
        rounded = {key: round(value, 2) if isinstance(value, float) else value for key, value in asdict(result).items()}
        print(json.dumps(rounded))


if __name__ == "__main__":
    main()
