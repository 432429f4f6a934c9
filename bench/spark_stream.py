"""A Spark stream of a topic: throughput, latency, and the cost of a micro-batch with one message.

    python bench/spark_stream.py [--messages 8000000] [--batches 30] [--cores 2] [--check]

`throughput` reads a topic in four large micro-batches; the first one is not counted. `floor` is the median time of
micro-batches with one message each, compared with a built-in source of Spark: the difference is our cost. `latency` is
the time from a receipt to the sink in an otherwise idle stream. `--check` only checks that everything runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark_scan import QUEUES, TOPIC, cpu_seconds, fill, rounded, spark_on

from minimq import Admin, LocalCluster, Message, Producer


def follow(spark: SparkSession, cluster: LocalCluster, **options: object) -> DataFrame:
    source = spark.readStream.format("minimq").option("nameserver", cluster.nameserver).option("topic", TOPIC)
    for name, value in options.items():
        source = source.option(name, str(value))
    return source.schema("offset bigint, body binary").load()


def discard(frame: DataFrame, folder: Path, trigger: dict[str, Any] | None = None) -> StreamingQuery:
    """Start a query that computes all rows and discards them."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
    return (writer.trigger(**trigger) if trigger else writer).start()


def throughput(spark: SparkSession, cluster: LocalCluster, folder: Path, messages: int) -> dict[str, object]:
    """Read everything in four micro-batches."""
    frame = follow(spark, cluster, startingOffsets="earliest", maxOffsetsPerTrigger=messages // 4)
    before = cpu_seconds(cluster)
    query = discard(frame, folder, {"availableNow": True})
    query.awaitTermination()
    after = cpu_seconds(cluster)
    full = [progress for progress in query.recentProgress if progress.numInputRows][1:]
    rows = sum(progress.numInputRows for progress in full)
    seconds = sum(progress.durationMs["triggerExecution"] for progress in full) / 1000
    return {
        "scenario": "throughput",
        "rows": rows,
        "rows_per_s": rows / seconds,
        "spark_cpu_s_per_million": (after[0] - before[0]) / messages * 1e6,
        "broker_cpu_s_per_million": (after[1] - before[1]) / messages * 1e6,
    }


def floor(spark: SparkSession, cluster: LocalCluster, folder: Path, batches: int) -> dict[str, object]:
    """Measure micro-batches of one message."""
    own = discard(
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load(),
        folder / "own",
    )
    own_ms = median_ms(own, batches)
    frame = follow(spark, cluster, startingOffsets="earliest", maxOffsetsPerTrigger=1)
    ours_ms = median_ms(discard(frame, folder / "ours"), batches)
    return {"scenario": "floor", "ms": ours_ms, "spark_alone_ms": own_ms, "difference_ms": ours_ms - own_ms}


def median_ms(query: StreamingQuery, batches: int) -> float:
    """Return the median time of a query's micro-batches after its warm-up, and stop the query."""
    last = batches + batches // 2
    wait_for(lambda: query.lastProgress is not None and query.lastProgress.batchId >= last)
    taken = [progress.durationMs["triggerExecution"] for progress in query.recentProgress if progress.numInputRows]
    query.stop()
    return statistics.median(taken[-batches:])


def latency(spark: SparkSession, cluster: LocalCluster, folder: Path, messages: int) -> dict[str, object]:
    """Send single messages to an idle stream and measure when they reach the sink."""
    arrived: dict[bytes, float] = {}

    def take(frame: DataFrame, _: int) -> None:
        now = time.monotonic()
        arrived.update((bytes(row.body), now) for row in frame.collect())

    writer = follow(spark, cluster).writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(folder)).start()
    waits = []
    wait_for(lambda: query.lastProgress is not None)  # it has to fix its start, the end of the topic, before the sends
    try:
        with Producer(cluster.nameserver) as producer:
            for number in range(messages + 1):
                body = b"latency-%d" % number
                producer.send(Message(TOPIC, body))
                sent = time.monotonic()
                wait_for(partial(arrived.__contains__, body))
                waits.append(1000 * (arrived[body] - sent))
    finally:
        query.stop()
    return {"scenario": "latency", "p50_ms": statistics.median(waits[1:]), "max_ms": max(waits[1:])}


def wait_for(condition: Callable[[], bool], timeout_s: float = 120.0, pause_s: float = 0.002) -> None:
    """Wait until a condition is true. Raises `TimeoutError`."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= give_up:
            raise TimeoutError(f"not within {timeout_s:.0f} s")
        time.sleep(pause_s)


def main() -> None:
    """Print the results as a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=8_000_000)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="few messages: sees that it works")
    given = parser.parse_args()
    messages, batches = (20_000, 4) if given.check else (given.messages, given.batches)
    with LocalCluster(brokers=1) as cluster, spark_on(given.cores) as spark, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
            admin.create_topic(TOPIC, queues=QUEUES)
            fill(producer, TOPIC, messages, 100, QUEUES)
        print(json.dumps(rounded(throughput(spark, cluster, folder / "throughput", messages))))
        print(json.dumps(rounded(floor(spark, cluster, folder, batches))))
        print(json.dumps(rounded(latency(spark, cluster, folder / "latency", 2 if given.check else 20))))


if __name__ == "__main__":
    main()
