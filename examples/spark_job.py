"""A Spark job that reads a topic and counts its messages by queue.

    pip install '.[spark]'   # and Java
    python examples/spark_job.py orders --nameserver 127.0.0.1:9876

The master is that of `spark-submit` if it runs the job, otherwise this machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, count_distinct, max, min  # noqa: A004 - these are Spark's

_LOG_CONFIG = Path(__file__).with_name("log4j2.properties")


def read_topic(spark: SparkSession, nameserver: str, topic: str) -> DataFrame:
    """Return the messages of a topic: position and body."""
    reader = spark.read.format("minimq").option("nameserver", nameserver).option("topic", topic)
    return reader.schema("broker_name string, queue_id int, offset bigint, body binary").load()


def count_queues(messages: DataFrame) -> DataFrame:
    """Return a row for each queue: number of messages, first and last offset."""
    return (
        messages.groupBy("broker_name", "queue_id")
        .agg(count("*").alias("messages"), min("offset").alias("first"), max("offset").alias("last"))
        .orderBy("broker_name", "queue_id")
    )


def count_bodies(messages: DataFrame) -> tuple[int, int]:
    """Return the number of messages, and the number of distinct bodies."""
    (row,) = messages.agg(count("*").alias("messages"), count_distinct(col("body")).alias("bodies")).collect()
    return row.messages, row.bodies


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the messages of a topic with Spark.")
    parser.add_argument("topic")
    parser.add_argument("--nameserver", default=os.environ.get("MINIMQ_NAMESERVER", "127.0.0.1:9876"))
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # its workers need the packages of this Python
    spark = (
        SparkSession.builder.appName(f"minimq {given.topic}")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    messages = read_topic(spark, given.nameserver, given.topic)
    count_queues(messages).show(n=1000)
    print("{} messages, {} different bodies".format(*count_bodies(messages)))
    spark.stop()


if __name__ == "__main__":
    main()
