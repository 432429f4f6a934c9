"""A broker that is offline for a while, and comes back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from minimq import Admin, LocalCluster, Message, MinimqError, Producer
from pyspark_minimq.errors import MinimqSparkError
from support.batch_plan import Plan
from support.client_replicas import bring_back, leave_slaves_alone, send
from support.replicas import replicas, wait_caught_up
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(200)]

ON_EACH = 50


@pytest.fixture(scope="module")
def two() -> Iterator[LocalCluster]:
    """Two brokers with fifty messages of topic t on each."""
    with LocalCluster(brokers=2) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
            queues = admin.route("t").write_queues()
        with Producer(cluster.nameserver) as producer:
            for queue in queues:
                producer.send_many((Message("t", b"%d" % number) for number in range(ON_EACH)), queue=queue)
        yield cluster


@pytest.fixture
def half(two: LocalCluster) -> Iterator[LocalCluster]:
    """The same without broker-a."""
    two.brokers[0].kill()
    with Admin(two.nameserver) as admin:
        wait_until(lambda: len(admin.offline_brokers()) == 1)
    yield two
    two.brokers[0].start()


def load(spark: SparkSession, cluster: LocalCluster, **options: str) -> DataFrame:
    reader = spark.read.format("minimq").option("nameserver", cluster.nameserver).options(topic="t", **options)
    return reader.schema("offset bigint, body binary").load()


def test_a_batch_query_does_not_pass_over_a_broker_that_is_offline(spark: SparkSession, half: LocalCluster) -> None:
    with pytest.raises(Exception, match="MinimqSparkError: ") as caught:
        load(spark, half, readTimeout="1s").collect()
    assert "topic t: broker-a: offline since " in str(caught.value)
    assert ", 1 queue not read; start it again, or read the others with failOnDataLoss=false" in str(caught.value)
    assert load(spark, half, failOnDataLoss="false").count() == ON_EACH


class Outage:
    """A sink that kills the broker when a micro-batch is planned, before its tasks read."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.broker = cluster.brokers[0]
        self.rows: dict[int, list[bytes]] = {}
        self.comes_back = False

    def take(self, frame: DataFrame, number: int) -> None:
        self.broker.kill()
        with ThreadPoolExecutor() as beside:
            if self.comes_back:
                beside.submit(self.broker.start)
            self.rows[number] = sorted(bytes(row.body) for row in frame.collect())


def test_a_stream_goes_on_when_its_broker_comes_back_in_time(spark: SparkSession, tmp_path: Path) -> None:
    sent = sorted(b"%d" % number for number in range(ON_EACH))
    with LocalCluster(brokers=1) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("t", queues=2)
        with Producer(own.nameserver) as producer:
            producer.send_many(Message("t", body) for body in sent)
        outage = Outage(own)

        def start(timeout: str) -> StreamingQuery:
            source = spark.readStream.format("minimq").option("nameserver", own.nameserver)
            frame = source.options(topic="t", startingOffsets="earliest", readTimeout=timeout)
            writer = frame.schema("body binary").load().writeStream.foreachBatch(outage.take)
            return writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()

        with pytest.raises(Exception, match=r"MinimqSparkError: .* cannot be read from offset 0 on"):
            start("1s").awaitTermination(100)
        assert outage.rows == {}
        outage.broker.start()

        outage.comes_back = True
        query = start("60s")
        assert query.awaitTermination(100)
        assert query.exception() is None
        assert [body for number in sorted(outage.rows) for body in outage.rows[number]] == sent


@pytest.mark.parametrize("columns", ["body binary", "offset bigint"])
@pytest.mark.parametrize("way", ["pause", "kill"])
def test_a_task_leaves_out_a_broker_that_does_not_answer_any_more(
    two: LocalCluster, caplog: pytest.LogCaptureFixture, way: str, columns: str
) -> None:
    strict = Plan(two.nameserver, "t", columns)
    lenient = Plan(two.nameserver, "t", columns, failOnDataLoss="false")
    server = two.server("broker-b")
    getattr(server, way)()
    try:
        with pytest.raises((MinimqSparkError, MinimqError), match="t/broker-b/0 cannot be read from offset 0 on: "):
            strict.count()
        with caplog.at_level(logging.WARNING):
            assert lenient.count() == ON_EACH
        assert f"offsets 0 to {ON_EACH - 1} of queue t/broker-b/0 are left out: " in caplog.text
    finally:
        server.resume() if way == "pause" else server.start()
    assert strict.count() == lenient.count() == 2 * ON_EACH


def test_a_stream_reads_later_what_a_broker_that_hangs_after_the_plan_has(
    spark: SparkSession, two: LocalCluster, tmp_path: Path
) -> None:
    rows: list[int] = []
    server = two.server("broker-b")

    def take(frame: DataFrame, _: int) -> None:
        if attempts:
            attempts.pop()
            server.pause()
        try:
            rows.append(frame.count())
        finally:
            server.resume()

    def run() -> StreamingQuery:
        source = spark.readStream.format("minimq").options(nameserver=two.nameserver, topic="t", readTimeout="2s")
        loaded = source.options(startingOffsets="earliest", failOnDataLoss="false").load()
        writer = loaded.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
        return writer.trigger(availableNow=True).start()

    attempts = ["the broker hangs"]
    with pytest.raises(StreamingQueryException, match="cannot be read from offset 0 on"):
        run().awaitTermination(100)
    assert rows == []
    assert run().awaitTermination(100)
    assert rows == [2 * ON_EACH]


# ---- Spark goes on at slaves while masters are offline ---------------------------------------------


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
