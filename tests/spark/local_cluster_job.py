"""Run by test_local_cluster.py: queries whose executors are processes of their own."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from support.failing_sink import AFTER_WRITE, FailingDataSource, Faults


def main(work: str, nameserver: str, topic: str, copy: str) -> None:
    spark = (
        SparkSession.builder.master("local-cluster[1,2,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.executor.extraJavaOptions", os.environ["SPARK_SUBMIT_OPTS"])  # those of the driver
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    WORK[work](spark, nameserver, topic, copy)
    spark.stop()


def read(spark: SparkSession, nameserver: str, topic: str, copy: str) -> None:
    """Read a topic with a query, and write to another one in a transaction."""
    frame = spark.read.format("minimq").option("nameserver", nameserver).option("topic", topic).load()
    [row] = frame.selectExpr("count(*)", "count(distinct message_id)", "sum(int(string(body)))").collect()
    print("RESULT", *row)
    write_through_failures(spark, nameserver, copy, "true")


def stream(spark: SparkSession, nameserver: str, topic: str, copy: str) -> None:
    """Read a topic with a stream, and write to another one without a transaction."""
    source = spark.readStream.format("minimq").option("nameserver", nameserver).option("topic", topic)
    source = (
        source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 7000).option("minPartitions", 8)
    )
    writer = source.load().writeStream.format("memory").queryName("stream").trigger(availableNow=True)
    writer.start().awaitTermination()
    [row] = spark.sql("select count(*), count(distinct message_id), sum(int(string(body))) from stream").collect()
    print("RESULT", *row)
    write_through_failures(spark, nameserver, copy, "false")


WORK = {function.__name__: function for function in (read, stream)}


def write_through_failures(spark: SparkSession, nameserver: str, topic: str, transactional: str) -> None:
    """Write rows, while a task fails once after its rows are acknowledged, and is tried again."""
    spark.dataSource.register(FailingDataSource)
    with tempfile.TemporaryDirectory() as folder:
        Faults(Path(folder)).plan(AFTER_WRITE)
        writer = spark.range(0, 20_000, 1, 4).selectExpr("string(id) AS body").write.format("minimq_failing")
        options = {"nameserver": nameserver, "topic": topic, "transactional": transactional, "faults": folder}
        writer.mode("append").options(**options).save()
    frame = spark.read.format("minimq").option("nameserver", nameserver).option("topic", topic).load()
    [row] = frame.selectExpr("count(*)", "count(distinct body)").collect()
    print("WRITE", *row)


if __name__ == "__main__":
    main(*sys.argv[1:])
