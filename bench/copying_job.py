"""Run by spark_driver.py: takes jobs from its standard input, a line of JSON each, and says how each has ended."""

from __future__ import annotations

import json
import os
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark_driver import Job

#: Processes that live for some seconds are not worth a better compiler, nor threads that collect garbage.
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
        # Executors are killed again and again: neither the application nor a task is given up for it.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "20",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    """Start the query, which ends when it has copied what there is now."""
    source = spark.readStream.format("minimq").option("nameserver", job.nameserver).option("topic", job.source)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", job.batch_rows)
    frame = source.schema("body binary, keys array<string>").load()
    if job.keyed:
        frame = frame.selectExpr("body", "keys", "keys[0] as sharding_key")
    writer = frame.writeStream.format("minimq").option("nameserver", job.nameserver).option("topic", job.target)
    writer = writer.option("transactional", job.transactional).option("checkpointLocation", job.checkpoint)
    return writer.trigger(availableNow=True).start()


def carry_out(spark: SparkSession, job: Job) -> str:
    """Run a query to its end, and return why it failed; "" when it did not."""
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
    spark.range(4).repartition(2).count()  # its executors are there after this
    tell("")
    for line in sys.stdin:
        tell(carry_out(spark, Job(**json.loads(line))))
    spark.stop()


if __name__ == "__main__":
    main()
