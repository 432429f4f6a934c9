"""Run by test_local_cluster.py: queries whose executors are processes of their own."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from support.failing_sink import AFTER_WRITE, FailingDataSource, Faults


def main(nameserver: str, topic: str, copy: str) -> None:
    spark = (
        SparkSession.builder.master("local-cluster[1,2,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.executor.extraJavaOptions", os.environ["SPARK_SUBMIT_OPTS"])  # those of the driver
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    frame = spark.read.format("minimq").option("nameserver", nameserver).option("topic", topic).load()
    [row] = frame.selectExpr("count(*)", "count(distinct message_id)", "sum(int(string(body)))").collect()
    print("RESULT", *row)

    source = spark.readStream.format("minimq").option("nameserver", nameserver).option("topic", topic)
    source = (
        source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 7000).option("minPartitions", 8)
    )
    writer = source.load().writeStream.format("memory").queryName("stream").trigger(availableNow=True)
    writer.start().awaitTermination()
    [row] = spark.sql("select count(*), count(distinct message_id), sum(int(string(body))) from stream").collect()
    print("STREAM", *row)
    write_through_failures(spark, nameserver, copy)
    spark.stop()


def write_through_failures(spark: SparkSession, nameserver: str, copy: str) -> None:
    """Write rows in each way, while a task fails once after its rows are acknowledged, and is tried again."""
    spark.dataSource.register(FailingDataSource)
    for transactional in ("true", "false"):
        topic = f"{copy}-{transactional}"
        with tempfile.TemporaryDirectory() as folder:
            Faults(Path(folder)).plan(AFTER_WRITE)
            writer = spark.range(0, 20_000, 1, 4).selectExpr("string(id) AS body").write.format("minimq_failing")
            options = {"nameserver": nameserver, "topic": topic, "transactional": transactional, "faults": folder}
            writer.mode("append").options(**options).save()
        frame = spark.read.format("minimq").option("nameserver", nameserver).option("topic", topic).load()
        [row] = frame.selectExpr("count(*)", "count(distinct body)").collect()
        print("WRITE", transactional, *row)


if __name__ == "__main__":
    main(*sys.argv[1:])
