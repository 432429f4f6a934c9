"""Run by spark_driver.py: reads jobs from stdin, one line of JSON each, and prints the outcome of each."""

from __future__ import annotations

import json
import os
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark_driver import Job

#: For processes that live for seconds, the optimizing compiler and parallel garbage collection do not pay.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"


def session(master: str, java_options: str) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("copying")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": f"{_JAVA_OPTIONS} {java_options}",
        "spark.executor.extraJavaOptions": f"{_JAVA_OPTIONS} {java_options}",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.sql.shuffle.partitions": "2",
        # Executors are killed repeatedly, which must not fail the application or a task.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "20",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    """Start the query, which ends when it has copied all present messages."""
    source = spark.readStream.format("minimq").option("nameserver", job.nameserver).option("topic", job.source)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", job.batch_rows)
    frame = source.schema("body binary, keys array<string>").load()
    if job.keyed:
        frame = frame.selectExpr("body", "keys", "keys[0] as sharding_key")
    writer = frame.writeStream.format("minimq").option("nameserver", job.nameserver).option("topic", job.target)
    writer = writer.option("transactional", job.transactional).option("checkpointLocation", job.checkpoint)
    return writer.trigger(availableNow=True).start()


def carry_out(spark: SparkSession, job: Job) -> str:
    """Run a query to its end, and return why it failed; "" if it did not."""
    try:
        start(spark, job).awaitTermination()
    except StreamingQueryException as error:
        print(error, file=sys.stderr, flush=True)
        return str(error).strip() or "no reason given"
    return ""


def tell(error: str) -> None:
    print(json.dumps({"error": error}), flush=True)


def main() -> None:
    spark = session(*sys.argv[1:])
    spark.range(4).repartition(2).count()  # waits for its executors
    tell("")
    for line in sys.stdin:
        tell(carry_out(spark, Job(**json.loads(line))))
    spark.stop()


if __name__ == "__main__":
    main()
