"""Run by test_standalone_cluster.py and test_connect.py: reads, writes and streams once each."""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("nameserver")
    parser.add_argument("topic")
    parser.add_argument("copy")
    parser.add_argument("--remote", help="address of a Connect server")
    parser.add_argument("--register", action="store_true")
    parser.add_argument("--archive", help="an artifact for the executors, with the folder in which it is unpacked")
    parser.add_argument("--batch-only", action="store_true")
    given = parser.parse_args()

    builder = SparkSession.builder
    spark = (builder.remote(given.remote) if given.remote else builder).getOrCreate()
    if given.archive:
        spark.addArtifacts(given.archive, archive=True)
        spark.conf.set("spark.sql.execution.pyspark.python", f"./{given.archive.partition('#')[2]}/bin/python")
    if given.register:
        from pyspark_minimq import DefaultSource  # it is there only where it has to be registered

        spark.dataSource.register(DefaultSource)

    source = spark.read.format("minimq").option("nameserver", given.nameserver)
    frame = source.option("topic", given.topic).schema("body binary").load()
    print("READ", len(frame.collect()), flush=True)
    frame.write.format("minimq").option("nameserver", given.nameserver).option("topic", given.copy).mode(
        "append"
    ).save()
    print("WRITTEN", len(source.option("topic", given.copy).schema("body binary").load().collect()), flush=True)
    if not given.batch_only:
        stream = spark.readStream.format("minimq").option("nameserver", given.nameserver)
        stream = stream.option("topic", given.topic).option("startingOffsets", "earliest").schema("body binary")
        query = stream.load().writeStream.format("noop").trigger(availableNow=True).start()
        query.awaitTermination()
        print("STREAMED", query.recentProgress[0].numInputRows, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
