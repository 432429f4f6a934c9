"""Run by test_local_cluster.py: queries whose executors are processes of their own."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def main(nameserver: str, topic: str) -> None:
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
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
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
