"""Spark writes to a topic: rows per second, and CPU seconds of Spark and of the brokers.

    python bench/spark_sink.py [--rows 4000000] [--runs 3] [--cores 2] [--check]

Bodies have 100 bytes. `plain` and `transactional` are batch writes of rows that Spark generates: bodies only, with tag,
key and properties, and distributed by a key; `rows alone` is the cost of generating them. `stream` copies a topic to
another one in four micro-batches; the first one is not counted. `--check` only checks that everything runs. All modes
check that all rows are stored.

Everything runs on this machine, so the brokers share its cores with Spark.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from spark_scan import QUEUES, TOPIC, cpu_seconds, discard, fill, rounded, spark_on

from minimq import Admin, LocalCluster, Producer

BODY = "lpad(string(id), 100, '0') AS body"
FRAMES = {
    "bodies": (BODY,),
    "all columns": (
        BODY,
        "concat('tag-', id % 10) AS tag",
        "array(concat('key-', id)) AS keys",
        "map('region', 'eu', 'number', string(id)) AS properties",
    ),
    "by key": (BODY, "concat('customer-', id % 100000) AS sharding_key"),
}


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The median run of one write."""

    write: str
    columns: str
    rows: int
    seconds: float
    rows_per_s: float
    spark_cpu_s: float
    broker_cpu_s: float


def write(frame: DataFrame, cluster: LocalCluster, topic: str, *, transactional: bool) -> None:
    options = {"nameserver": cluster.nameserver, "topic": topic, "transactional": str(transactional).lower()}
    frame.write.format("minimq").mode("append").options(**options).save()


def batch_writes(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, rows: int, runs: int, cores: int
) -> Iterator[WriteResult]:
    """Write rows in each way, once to warm up, then `runs` times, and yield the median run of each."""
    for columns, expressions in FRAMES.items():
        frame = spark.range(0, rows, 1, 4 * cores).selectExpr(*expressions)
        for name in ("rows alone", "plain", "transactional"):
            results: list[WriteResult] = []
            for _ in range(runs + 1):
                topic = f"{name}-{columns}-{len(results)}".replace(" ", "-")
                admin.create_topic(topic, queues=QUEUES)
                before, started = cpu_seconds(cluster), time.monotonic()
                if name == "rows alone":
                    discard(frame)
                else:
                    write(frame, cluster, topic, transactional=name == "transactional")
                seconds, after = time.monotonic() - started, cpu_seconds(cluster)
                spark_s, broker_s = (end - start for start, end in zip(before, after, strict=True))
                results.append(WriteResult(name, columns, rows, seconds, rows / seconds, spark_s, broker_s))
                check(spark, cluster, topic, 0 if name == "rows alone" else rows)
                admin.delete_topic(topic)
            middle = statistics.median_low(result.seconds for result in results[1:])
            yield next(result for result in results[1:] if result.seconds == middle)


def stream_write(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, folder: Path, rows: int, *, transactional: bool
) -> WriteResult:
    """Copy a topic in four micro-batches."""
    copy = f"copy-{transactional}"
    admin.create_topic(copy, queues=QUEUES)
    source = spark.readStream.format("minimq").option("nameserver", cluster.nameserver).option("topic", TOPIC)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows // 4)
    writer = source.schema("body binary").load().writeStream.format("minimq").trigger(availableNow=True)
    writer = writer.option("nameserver", cluster.nameserver).option("topic", copy)
    writer = writer.option("transactional", str(transactional).lower()).option("checkpointLocation", str(folder / copy))
    before = cpu_seconds(cluster)
    query = writer.start()
    query.awaitTermination()
    after = cpu_seconds(cluster)
    spark_s, broker_s = (end - start for start, end in zip(before, after, strict=True))
    full = [progress for progress in query.recentProgress if progress.numInputRows][1:]
    counted = sum(progress.numInputRows for progress in full)
    seconds = sum(progress.durationMs["triggerExecution"] for progress in full) / 1000
    check(spark, cluster, copy, rows)
    name = "stream, transactional" if transactional else "stream, plain"
    return WriteResult(name, "bodies", counted, seconds, counted / seconds, spark_s, broker_s)


def check(spark: SparkSession, cluster: LocalCluster, topic: str, rows: int) -> None:
    """Raise `RuntimeError` unless a topic has `rows` messages."""
    source = spark.read.format("minimq").option("nameserver", cluster.nameserver).option("topic", topic)
    stored = source.schema("offset bigint").load().count()
    if stored != rows:
        raise RuntimeError(f"topic {topic} has {stored} messages instead of {rows}")


def main() -> None:
    """Print the results as a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="few rows, one run: sees that it works")
    given = parser.parse_args()
    rows, runs = (40_000, 1) if given.check else (given.rows, given.runs)
    with (
        LocalCluster(brokers=1) as cluster,
        spark_on(given.cores) as spark,
        tempfile.TemporaryDirectory() as folder,
        Admin(cluster.nameserver) as admin,
        Producer(cluster.nameserver) as producer,
    ):
        for result in batch_writes(spark, cluster, admin, rows, runs, given.cores):
            print(json.dumps(rounded(asdict(result))), flush=True)
        admin.create_topic(TOPIC, queues=QUEUES)
        fill(producer, TOPIC, rows, 100, QUEUES)
        for transactional in (False, True):
            result = stream_write(spark, cluster, admin, Path(folder), rows, transactional=transactional)
            print(json.dumps(rounded(asdict(result))), flush=True)


if __name__ == "__main__":
    main()
