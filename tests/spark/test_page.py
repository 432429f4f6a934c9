"""The Python blocks of docs/spark.md as they are printed; the address and the folder of checkpoints differ.

The listener is run by test_stream_read.py, the client of Spark Connect by test_standalone_cluster.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
from minimq.schemas import AvroSerializer, SchemaRegistry
from support.pages import blocks_of
from support.registry_server import registry_server

pytestmark = pytest.mark.spark

SCHEMA = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "string"}, {"name": "total", "type": "double"}]}"""


class PrintedProgram:
    """The blocks of the page, with the names that they share."""

    def __init__(self, spark: SparkSession, nameserver: str, folder: Path) -> None:
        self._blocks = [*blocks_of("docs/spark.md", "python"), *blocks_of("docs/spark.md", "py")]
        self.nameserver = nameserver
        self._folder = folder
        self.rows = 0  # that the last query has read
        self.names: dict[str, Any] = {"spark": spark, "schema": SCHEMA}

    def run(self, part: str, registry: str = "") -> None:
        """Run the only block that has a part; the streaming query that it starts is ended once it has read all."""
        [block] = [block for block in self._blocks if part in block]
        here = block.replace('"127.0.0.1:9876"', repr(self.nameserver)).replace("http://127.0.0.1:8081", registry)
        if "nameserver" not in here:  # where the default is meant
            here = here.replace('.option("topic"', f'.option("nameserver", "{self.nameserver}").option("topic"')
        exec(here.replace('"checkpoints/', f'"{self._folder}/'), self.names)
        query = self.names.pop("query", None)
        if query is not None:
            try:
                query.processAllAvailable()
                self.rows = sum(progress.numInputRows for progress in query.recentProgress)
            finally:
                query.stop()

    def bodies(self, topic: str) -> list[str]:
        source = self.names["spark"].read.format("minimq").options(nameserver=self.nameserver, topic=topic)
        return sorted(row[0] for row in source.load().selectExpr("string(body)").collect())


@pytest.fixture
def printed(spark: SparkSession, tmp_path: Path) -> Iterator[PrintedProgram]:
    with LocalCluster(brokers=1) as cluster, Admin(cluster.nameserver) as admin:
        for topic in ("orders", "paid-orders"):
            admin.create_topic(topic, queues=2)
        yield PrintedProgram(spark, cluster.nameserver, tmp_path)


@pytest.mark.long
def test_the_blocks_read_and_write(
    spark: SparkSession, tmp_path: Path, printed: PrintedProgram, capfd: pytest.CaptureFixture[str]
) -> None:
    names = printed.names
    printed.run("session(")
    assert names["spark"] is spark
    columns = "id int, status string, customer string"
    names["frame"] = spark.createDataFrame([(1, "paid", "a"), (2, "open", "b")], columns)
    printed.run("sharding_key")
    names["frame"] = spark.createDataFrame([("x",)], "body string")
    for _ in range(2):  # the second time it writes nothing
        printed.run("20260131")
    paid, unpaid = '{"id":1,"status":"paid","customer":"a"}', '{"id":2,"status":"open","customer":"b"}'
    assert printed.bodies("orders") == sorted(["x", paid, unpaid])
    printed.run('spark.read.format("minimq")\n')
    assert "|paid|    1|" in capfd.readouterr().out
    printed.run("maxOffsetsPerTrigger")
    assert printed.rows == 3

    source = spark.readStream.format("minimq").options(nameserver=printed.nameserver, topic="orders")
    names["paid"] = source.option("startingOffsets", "earliest").load().where("tag = 'paid'").select("body")
    printed.run("paid.selectExpr")
    assert len(printed.bodies("paid-orders")) == 1
    (tmp_path / "paid-orders").rename(tmp_path / "former")
    printed.run("foreachBatch(write)")
    assert printed.bodies("orders").count(paid) == 2


def test_the_block_about_avro_makes_columns(spark: SparkSession, printed: PrintedProgram) -> None:
    with registry_server() as server, Producer(printed.nameserver) as producer:
        registry = SchemaRegistry(server.url)
        producer.send(AvroSerializer(SCHEMA, registry).message("orders", {"id": "o-17", "total": 4.8}))
        source = spark.read.format("minimq").options(nameserver=printed.nameserver, topic="orders")
        printed.names["rows"] = source.load()
        printed.run("from_confluent_avro", server.url)
        rows = printed.names["orders"].select("order.id", "order.total").collect()
    assert [tuple(row) for row in rows] == [("o-17", 4.8)]


# ---- The job that `spark-submit` runs in a container: what it counts is what was sent -----------


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.spark
def test_it_counts_what_is_there(
    spark: SparkSession, cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import spark_job  # found only now

    sent = {MessageQueue(topic, "broker-a", 1): 700, MessageQueue(topic, "broker-b", 3): 302}
    with Producer(cluster.nameserver) as producer:
        for queue, count in sent.items():
            producer.send_many((Message(topic, b"%d" % number) for number in range(count)), queue=queue)
    messages = spark_job.read_topic(spark, cluster.nameserver, topic)
    rows = [tuple(row) for row in spark_job.count_queues(messages).collect()]
    assert rows == [("broker-a", 1, 700, 0, 699), ("broker-b", 3, 302, 0, 301)]
    assert spark_job.count_bodies(messages) == (1002, 700)
