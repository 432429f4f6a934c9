"""A topic that is deleted, and perhaps created again, between the plan of a query and its tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
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
def test_the_tasks_of_a_topic_that_was_resized(
    cluster: LocalCluster, topic: str, admin: Admin, fill: Fill, columns: str
) -> None:
    fill("old", 2)
    plan = Plan(cluster.nameserver, topic, columns)
    admin.update_topic(topic, read_queues=4, write_queues=4)
    assert plan.count() == 20
