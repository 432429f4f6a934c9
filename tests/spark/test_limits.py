"""The limits of Spark's interface for Python, and the way around them, as docs/spark.md tells them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from minimq import Admin, LocalCluster, Message, Producer

pytestmark = pytest.mark.spark

HIDE_TRACEBACK = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"


@pytest.fixture
def frame(spark: SparkSession, cluster: LocalCluster, topic: str) -> DataFrame:
    """Ten messages with a tag."""
    with Producer(cluster.nameserver) as producer:
        producer.send_many(Message(topic, b"%d" % number, tag="paid") for number in range(10))
    options = {"nameserver": cluster.nameserver, "topic": topic}
    return spark.read.format("minimq").options(**options).schema("tag string, offset bigint").load()


def plan_of(frame: DataFrame, mode: str) -> str:
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        frame.explain(mode=mode)
    return written.getvalue()


def test_small_topics_are_joined_by_broadcast_when_the_query_says_so(spark: SparkSession, frame: DataFrame) -> None:
    """If this fails because Spark knows sizes, the source can tell them, and docs/spark.md is out of date."""
    large = spark.range(100).withColumnRenamed("id", "offset")
    plain = large.join(frame, "offset", "left")
    assert "8.0 EiB" in plan_of(plain, "cost")
    assert "BroadcastHashJoin" not in plan_of(plain, "simple")
    assert "BroadcastHashJoin" in plan_of(large.join(broadcast(frame), "offset", "left"), "simple")
    cached = frame.cache()
    cached.count()
    assert "BroadcastHashJoin" in plan_of(large.join(cached, "offset", "left"), "simple")
    cached.unpersist()


def test_update_mode_is_rejected_by_spark_alone_and_possible_in_foreach_batch(
    spark: SparkSession, frame: DataFrame, cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    options = {"nameserver": cluster.nameserver, "topic": topic}
    source = spark.readStream.format("minimq").options(**options).option("startingOffsets", "earliest").load()
    writer = source.groupBy("tag").count().selectExpr("string(count) AS body").writeStream.outputMode("update")
    sink = writer.format("minimq").options(**options).option("checkpointLocation", str(tmp_path / "rejected"))
    with pytest.raises((AnalysisException, StreamingQueryException, IllegalArgumentException)) as caught:
        sink.start().awaitTermination(60)
    assert "does not support Update mode" in str(caught.value)

    def write(counts: DataFrame, number: int) -> None:
        options_of_one = {**options, "txnAppId": "counts", "txnVersion": str(number)}
        counts.write.format("minimq").options(**options_of_one).mode("append").save()

    query = writer.foreachBatch(write).option("checkpointLocation", str(tmp_path / "taken"))
    query.trigger(availableNow=True).start().awaitTermination(60)
    written = spark.read.format("minimq").options(**options).schema("body binary").load()
    assert written.where("body = binary('10')").count() == 1


def test_errors_are_shown_with_one_entry_of_ours(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, new_name: Callable[[], str], tmp_path: Path
) -> None:
    name = new_name()
    admin.create_topic(name, queues=1)
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(name, b"x"))
    options = {"nameserver": cluster.nameserver, "topic": name}
    planned = spark.read.format("minimq").options(**options).schema("body binary").load()
    assert planned.count() == 1
    admin.delete_topic(name)
    stream = spark.readStream.format("minimq").options(**options).load().writeStream.format("noop")

    def of_task() -> str:
        with pytest.raises(PythonException) as caught:
            planned.collect()
        return str(caught.value)

    def of_plan() -> str:
        with pytest.raises(AnalysisException) as caught:
            spark.read.format("minimq").options(**options).load().collect()
        return str(caught.value)

    def of_stream() -> str:
        with pytest.raises(StreamingQueryException) as caught:
            stream.option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)
        return str(caught.value)

    for failure in (of_task, of_plan, of_stream):
        lines = failure().splitlines()
        assert name in next(line for line in lines if line.startswith("pyspark_minimq.errors."))
    spark.conf.set(HIDE_TRACEBACK, "true")
    try:
        assert "File" not in of_task() + of_plan()
    finally:
        spark.conf.unset(HIDE_TRACEBACK)
