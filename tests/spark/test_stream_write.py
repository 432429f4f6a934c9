"""`writeStream.format("minimq")` on real clusters, through failures: one topic is copied to another."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from minimq import Admin, LocalCluster, Message, Producer
from support.failing_sink import AFTER_COMMIT, BEFORE_COMMIT, FailingDataSource, Faults
from support.reading import read_all

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

#: Messages in a micro-batch.
SIZE = 400


class Copying:
    """A query that copies the test's topic to another, a micro-batch after the other, until there is no more."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, topic: str, copy: str, folder: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._nameserver = cluster.nameserver
        self._folder = folder
        self._topic = topic
        self.target = copy
        self.checkpoint = folder / "checkpoint"
        self.faults = Faults(folder)
        self._options = {"faults": str(folder), "checkpointLocation": str(self.checkpoint)}

    def copied(self, target: str) -> Copying:
        """Return a query with a copy of the checkpoint and another target."""
        other = Copying(self._spark, self._cluster, self._topic, target, self._folder / "copied")
        shutil.copytree(self.checkpoint, other.checkpoint)
        return other

    def send(self, numbers: Iterable[int]) -> None:
        with Producer(self._nameserver) as producer:
            producer.send_many(Message(self._topic, b"%d" % number) for number in numbers)

    def run(self, transactional: str = "true", *, sink: str = "minimq_failing", **options: str) -> None:
        given = {"nameserver": self._nameserver, "topic": self.target, "transactional": transactional, **self._options}
        given |= options
        if sink == "minimq":
            del given["faults"]
        self._finish(self._rows().writeStream.format(sink).options(**given))

    def run_in_batches(self, **options: str) -> None:
        """Write each micro-batch as a data frame, under its number if there is a `txnAppId` among the options."""
        given = {"nameserver": self._nameserver, "topic": self.target, "faults": self._options["faults"], **options}

        def write(frame: DataFrame, number: int) -> None:
            version = {"txnVersion": str(number)} if "txnAppId" in options else {}
            frame.write.format("minimq_failing").mode("append").options(**given, **version).save()

        writer = self._rows().writeStream.foreachBatch(write)
        self._finish(writer.option("checkpointLocation", str(self.checkpoint)))

    def _rows(self) -> DataFrame:
        source = self._spark.readStream.format("minimq").schema("body binary, offset bigint")
        source = source.option("nameserver", self._nameserver).option("topic", self._topic)
        source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", SIZE)
        return source.load().selectExpr("body", "offset % 5 AS sharding_key")

    @staticmethod
    def _finish(writer: DataStreamWriter) -> None:
        """Run a query until there is no more."""
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()

    def fail(self, where: str, transactional: str = "true", **options: str) -> None:
        self.faults.plan(where)
        with pytest.raises(PySparkException, match=f"a planned fault {where}"):
            self.run(transactional, **options)

    def forget(self, *entries: str) -> None:
        """Remove entries of the checkpoint, such as "commits/1"."""
        for entry in entries:
            folder, _, number = entry.partition("/")
            (self.checkpoint / folder / number).unlink()
            (self.checkpoint / folder / f".{number}.crc").unlink(missing_ok=True)

    def batches(self) -> int:
        """Return how many micro-batches Spark has committed."""
        return sum(path.name.isdecimal() for path in (self.checkpoint / "commits").iterdir())

    def written(self) -> list[int]:
        return sorted(int(message.body) for message in read_all(self._nameserver, self.target))


@pytest.fixture
def topic(admin: Admin, new_name: Callable[[], str]) -> str:
    """Name of a new topic with a queue on each of the two brokers: a task reads a queue, and each costs time."""
    name = new_name()
    admin.create_topic(name, queues=1)
    return name


@pytest.fixture
def copying(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str], tmp_path: Path
) -> Copying:
    spark.dataSource.register(FailingDataSource)
    copy = new_name()
    admin.create_topic(copy, queues=2)
    return Copying(spark, cluster, topic, copy, tmp_path)


def test_each_message_is_written_once(copying: Copying) -> None:
    copying.run(sink="minimq")  # the first micro-batch is empty
    assert copying.written() == []
    copying.send(range(1000))
    copying.run(sink="minimq")
    assert copying.written() == list(range(1000))
    copying.run(sink="minimq")
    copying.send(range(1000, 1500))
    copying.run(sink="minimq")
    assert copying.written() == list(range(1500))
    assert copying.batches() > 4


def test_a_copy_of_the_checkpoint_with_another_target_takes_nothing_from_the_query(
    copying: Copying, admin: Admin, new_name: Callable[[], str]
) -> None:
    copying.send(range(10))
    copying.run(sink="minimq")
    elsewhere = copying.copied(new_name())
    admin.create_topic(elsewhere.target, queues=2)
    copying.send(range(10, 30))
    elsewhere.run(sink="minimq")
    assert elsewhere.written() == list(range(10, 30))
    copying.run(sink="minimq")
    assert copying.written() == list(range(30))


def test_a_micro_batch_that_failed_is_written_once(copying: Copying) -> None:
    copying.send(range(SIZE))
    copying.run()
    copying.send(range(SIZE, 2 * SIZE))
    for where in (BEFORE_COMMIT, AFTER_COMMIT):
        copying.fail(where)
        assert copying.written() == list(range(2 * SIZE if where is AFTER_COMMIT else SIZE))
    copying.run()
    assert copying.written() == list(range(2 * SIZE))
    copying.send(range(2 * SIZE, 3 * SIZE))
    copying.run()
    assert copying.written() == list(range(3 * SIZE))


def test_rejected_rows_are_written_to_the_dead_letter_topic_once_or_dropped(
    copying: Copying, cluster: LocalCluster, admin: Admin, new_name: Callable[[], str]
) -> None:
    letters = new_name()
    admin.create_topic(letters, queues=1)
    rejecting = {"maxBodyBytes": "3", "deadLetterTopic": letters}
    copying.send(range(990, 1010))
    with pytest.raises(PySparkException, match="has 4 bytes in a row, the limit is 3"):
        copying.run(maxBodyBytes="3")
    for where in (BEFORE_COMMIT, AFTER_COMMIT):
        copying.fail(where, **rejecting)
        found = read_all(cluster.nameserver, letters)
        assert len(found) == (10 if where is AFTER_COMMIT else 0)
    copying.run(**rejecting)
    copying.send(range(995, 1005))
    copying.run(maxBodyBytes="3", rejectedRows="drop")
    assert copying.written() == sorted([*range(990, 1000), *range(995, 1000)])
    found = read_all(cluster.nameserver, letters)
    assert [message.body for message in found] == [b"100"] * 10
    assert {message.properties["body_bytes"] for message in found} == {"4"}
    assert all("has 4 bytes in a row, the limit is 3" in message.properties["rejected"] for message in found)


def test_a_driver_that_dies_before_spark_notes_the_commit(copying: Copying) -> None:
    copying.send(range(2 * SIZE))
    copying.run()
    last = copying.batches() - 1
    copying.forget(f"commits/{last}")
    copying.run()
    assert copying.batches() == last + 1
    assert copying.written() == list(range(2 * SIZE))


@pytest.mark.parametrize("named", [True, pytest.param(False, marks=pytest.mark.long)])
def test_micro_batches_that_are_written_as_data_frames(
    copying: Copying, new_name: Callable[[], str], named: bool
) -> None:
    options = {"txnAppId": new_name()} if named else {"transactional": "true"}
    copying.run_in_batches(**options)  # the first micro-batch is empty
    copying.send(range(2 * SIZE))
    for where in (BEFORE_COMMIT, AFTER_COMMIT) if named else (AFTER_COMMIT,):
        copying.faults.plan(where)
        with pytest.raises(PySparkException, match=f"a planned fault {where}"):
            copying.run_in_batches(**options)
    copying.run_in_batches(**options)
    written = copying.written()
    assert set(written) == set(range(2 * SIZE))
    assert (len(written) == 2 * SIZE) == named


def test_an_older_copy_of_the_checkpoint_is_rejected(copying: Copying) -> None:
    copying.send(range(3 * SIZE))
    copying.run()
    last = copying.batches() - 1
    copying.forget(f"commits/{last}", f"offsets/{last}", f"commits/{last - 1}")
    with pytest.raises(PySparkException) as caught:
        copying.run()
    [line] = {line for line in str(caught.value).splitlines() if re.search("MinimqSparkError: ", line)}
    assert "checkpoint" in line
    assert copying.written() == list(range(3 * SIZE))


def test_results_that_change_are_rejected(copying: Copying, spark: SparkSession) -> None:
    counts = spark.readStream.format("rate").load().groupBy().count().selectExpr("string(count) AS body")
    writer = counts.writeStream.format("minimq").option("topic", "t").outputMode("complete")
    with pytest.raises(PySparkException, match="messages are appended to a topic and never replace others"):
        writer.option("checkpointLocation", str(copying.checkpoint)).start().awaitTermination(100)
