"""A topic that is deleted, and perhaps created again, between the plan of a query and its tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
from pyspark_minimq.batch import MinimqBatchReader
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.options import parse_read_options
from pyspark_minimq.schema import MESSAGE_SCHEMA

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
    assert f"topic {topic} was deleted and created again since this read was planned: " in str(caught.value)
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


class Plan:
    """A planned batch query, without Spark."""

    def __init__(self, nameserver: str, topic: str, columns: str, **options: str) -> None:
        given = parse_read_options({"nameserver": nameserver, "topic": topic, "readTimeout": "2s", **options})
        self._reader = MinimqBatchReader(given, StructType([MESSAGE_SCHEMA[columns.split(maxsplit=1)[0]]]))
        self._parts = self._reader.partitions()

    def count(self) -> int:
        return sum(batch.num_rows for part in self._parts for batch in self._reader.read(part))


@pytest.mark.parametrize("columns", COLUMNS)
def test_the_tasks_of_a_topic_that_is_gone(
    cluster: LocalCluster,
    topic: str,
    admin: Admin,
    fill: Fill,
    columns: str,
    caplog: pytest.LogCaptureFixture,
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


@pytest.mark.fault
def test_a_task_does_not_take_a_broker_that_is_down_for_one_that_lost_its_topic(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path) as own, Admin(own.nameserver) as admin:
        admin.create_topic("t", queues=1)
        with Producer(own.nameserver) as producer:
            producer.send(Message("t", b"x"))
        lenient = Plan(own.nameserver, "t", "body binary", failOnDataLoss="false")
        own.brokers[0].kill()
        with pytest.raises(MinimqSparkError):
            lenient.count()
        own.brokers[0].start()
        assert lenient.count() == 1
