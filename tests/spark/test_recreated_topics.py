"""A topic that is deleted, and perhaps created again, between the plan of a query and its tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
from pyspark_minimq.errors import MinimqSparkError
from support.batch_plan import Plan

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

Fill = Callable[[str, int], None]
#: With a body, and such that nothing has to be fetched.
COLUMNS = ["body binary", "offset bigint"]


@pytest.fixture
def fill(admin: Admin, producer: Producer, topic: str) -> Fill:
    """Create the topic anew on broker-a, with so many queues and ten messages in each."""

    def filling(word: str, queues: int) -> None:
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=queues, brokers=["broker-a"])
        for number in range(queues):
            bodies = [f"{word}-{number}-{index}" for index in range(10)]
            queue = MessageQueue(topic, "broker-a", number)
            producer.send_many([Message(topic, body.encode()) for body in bodies], queue=queue)

    return filling


class Crash:
    """A sink that fails at one micro-batch, and collects bodies otherwise."""

    def __init__(self) -> None:
        self.at: int | None = 1
        self.bodies: list[str] = []

    def take(self, frame: DataFrame, number: int) -> None:
        if number == self.at:
            raise RuntimeError("the job crashes")
        self.bodies += [bytes(row.body).decode() for row in frame.collect()]


@pytest.mark.parametrize("queues", [2, 1])
def test_a_planned_micro_batch_never_reads_the_new_topic(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, topic: str, fill: Fill, queues: int
) -> None:
    sink = Crash()

    def run(fail_on_data_loss: str) -> None:
        source = spark.readStream.format("minimq").schema("body binary").options(nameserver=cluster.nameserver)
        source = source.options(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="10")
        writer = source.option("failOnDataLoss", fail_on_data_loss).load().writeStream.foreachBatch(sink.take)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(200)
        finally:
            query.stop()

    fill("old", 2)
    with pytest.raises(StreamingQueryException, match="the job crashes"):
        run("true")
    assert len(sink.bodies) == 10
    sink.at = None
    fill("new", queues)
    with pytest.raises(StreamingQueryException) as caught:
        run("true")
    reason = f"MinimqSparkError: queue {topic}/broker-a/"
    assert reason in str(caught.value)
    assert f"topic {topic} was deleted and created again since this read was planned; " in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)
    assert len(sink.bodies) == 10

    run("false")
    new = sorted(f"new-{queue}-{index}" for queue in range(queues) for index in range(10))
    assert sorted(sink.bodies[10:]) == new
    run("true")  # told once
    assert len(sink.bodies) == 10 + len(new)


@pytest.mark.parametrize("option", ["startingOffsets", "assign"])
def test_a_new_query_whose_first_micro_batch_failed_starts_with_what_exists(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, topic: str, fill: Fill, option: str
) -> None:
    sink = Crash()
    sink.at = 0
    chosen = {
        "startingOffsets": {"topic": topic, "startingOffsets": f'{{"{topic}": {{"broker-a": {{"0": 0, "1": 0}}}}}}'},
        "assign": {"assign": f'{{"{topic}": {{"broker-a": [0, 1]}}}}', "startingOffsets": "earliest"},
    }[option]

    def run(fail_on_data_loss: str) -> None:
        source = spark.readStream.format("minimq").schema("body binary").options(nameserver=cluster.nameserver)
        loaded = source.options(**chosen, failOnDataLoss=fail_on_data_loss).load()
        writer = loaded.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(200)
        finally:
            query.stop()

    fill("old", 2)
    with pytest.raises(StreamingQueryException, match="the job crashes"):
        run("true")
    sink.at = None
    fill("new", 1)
    with pytest.raises(StreamingQueryException, match=rf"{topic}/broker-a/1, which does not exist: there are queue"):
        run("true")
    run("false")
    assert sorted(sink.bodies) == [f"new-0-{index}" for index in range(10)]


@pytest.mark.parametrize("columns", COLUMNS)
def test_the_second_action_of_a_frame_does_not_read_the_new_topic(
    spark: SparkSession, cluster: LocalCluster, topic: str, fill: Fill, columns: str
) -> None:
    def load(**options: str) -> DataFrame:
        source = spark.read.format("minimq").options(nameserver=cluster.nameserver, topic=topic, **options)
        return source.schema(columns).load()

    fill("old", 2)
    frame, lenient = load(), load(failOnDataLoss="false")
    assert (frame.count(), lenient.count()) == (20, 20)
    fill("new", 2)
    with pytest.raises(PythonException, match=r"MinimqSparkError: .* was deleted and created again since"):
        frame.count()
    assert lenient.count() == 0
    assert load().count() == 20


@pytest.mark.parametrize("columns", COLUMNS)
def test_the_tasks_of_a_topic_that_is_gone(
    cluster: LocalCluster, topic: str, admin: Admin, fill: Fill, columns: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill("old", 2)
    strict = Plan(cluster.nameserver, topic, columns)
    lenient = Plan(cluster.nameserver, topic, columns, failOnDataLoss="false")
    admin.delete_topic(topic)
    with pytest.raises(MinimqSparkError, match="failOnDataLoss=false reads what is left"):
        strict.count()
    with caplog.at_level(logging.WARNING):
        assert lenient.count() == 0
    assert f"offsets 0 to 9 of queue {topic}/broker-a/1 are lost" in caplog.text


@pytest.mark.parametrize("columns", COLUMNS)
def test_the_tasks_of_a_topic_that_was_resized(
    cluster: LocalCluster, topic: str, admin: Admin, fill: Fill, columns: str
) -> None:
    fill("old", 2)
    plan = Plan(cluster.nameserver, topic, columns)
    admin.update_topic(topic, read_queues=4, write_queues=4)
    assert plan.count() == 20
