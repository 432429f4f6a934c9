"""Run by test_finding.py: reads a topic with a session made in one of several ways, and prints what became of it."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main() -> None:
    nameserver, topic, *how = sys.argv[1:]
    builder = SparkSession.builder.config("spark.ui.enabled", "false")
    if "spark.master" not in SparkSession.builder._options:
        builder = builder.config("spark.master", "local[1]")
    if how == ["helped"]:
        from pyspark_minimq import session  # only where it helps

        spark = session(builder)
    else:
        spark = builder.getOrCreate()
    try:
        source = spark.read.format("minimq").option("nameserver", nameserver).option("topic", topic)
        print("FOUND", source.schema("offset bigint").load().count(), flush=True)
    except Exception as error:  # noqa: BLE001 - of several classes, and the text is what matters
        print(error, flush=True)
    if how == ["too late"]:
        from pyspark_minimq import session  # as above

        session()
    spark.stop()


if __name__ == "__main__":
    main()
