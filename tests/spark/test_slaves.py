"""Spark goes on at slaves while masters are away."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from minimq import LocalCluster
from support.client_replicas import bring_back, leave_slaves_alone, send
from support.replicas import replicas, wait_caught_up
from support.waiting import wait_until

COLUMNS = "queue_id int, offset bigint, body binary"


@pytest.mark.spark
@pytest.mark.fault
@pytest.mark.timeout(400)
def test_batch_queries_and_streams_go_on_at_slaves(spark: SparkSession, tmp_path: Path) -> None:
    came: list[tuple[int, int]] = []

    def take(frame: DataFrame, _: int) -> None:
        came.extend((row.queue_id, row.offset) for row in frame.collect())

    def load(cluster: LocalCluster) -> DataFrame:
        source = spark.read.format("minimq").option("nameserver", cluster.nameserver).option("topic", "t")
        return source.schema(COLUMNS).load()

    with replicas(tmp_path / "cluster", nameservers=2) as cluster:
        send(cluster, 300)
        wait_caught_up(cluster)
        planned = load(cluster)
        assert planned.count() == 300
        source = spark.readStream.format("minimq").option("nameserver", cluster.nameserver).option("topic", "t")
        source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "10").schema(COLUMNS)
        query = source.load().writeStream.foreachBatch(take).start()
        try:
            wait_until(lambda: came, 100)
            leave_slaves_alone(cluster)
            wait_until(lambda: len(came) == 300, 200)
            assert planned.count() == load(cluster).count() == 300
            bring_back(cluster)
            send(cluster, 50)
            wait_until(lambda: len(came) == 350, 200)
        finally:
            query.stop()
        assert len(set(came)) == 350
        assert load(cluster).count() == 350
