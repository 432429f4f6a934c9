"""Spark reads a compacted topic as it is, and the query of the documentation gives its current table."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from minimq import Admin, Compaction, LocalCluster, Message, Producer
from support.reading import read_all
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/compacted-topics.md"
SPARK = PAGE.with_name("spark.md")


@pytest.mark.timeout(300)
def test_the_table_is_that_of_a_dictionary(spark: SparkSession, tmp_path: Path, new_name: Callable[[], str]) -> None:
    chance, table = random.Random(5), dict[str, bytes]()
    messages = []
    for number in range(4000):
        key = f"N{chance.randrange(300)}"
        table[key] = b"" if chance.random() < 0.1 else b"%d" % number + bytes(300)
        value = table[key]
        messages.append(Message("planes", value, keys=(key,)) if value else Message.tombstone("planes", key))
    options: dict[str, object] = {"segment_bytes": 1 << 18, "upkeep_interval_s": 0.05}
    shown: dict[str, object] = {"metrics": "127.0.0.1:0", "log_format": "json"}
    with LocalCluster(brokers=1, data_dir=tmp_path / "data", broker_options=options | shown) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("plain", queues=1)
            admin.create_topic("planes", queues=3, compaction=Compaction(dirty_ratio=0.01))
        with Producer(cluster.nameserver) as producer:
            for first in range(0, len(messages), 100):
                producer.send_many(messages[first : first + 100])
        address = metrics_address(cluster.brokers[0].log_path)
        wait_until(lambda: Scrape(address).value("minimq_broker_compaction_removed_messages_total") > 1000, 30.0)
        names: dict[str, Any] = {"spark": spark, "nameserver": cluster.nameserver}
        for block in re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(block, names)
        found = [{row["key"]: bytes(row["body"]) for row in names[name].collect()} for name in ("table", "made")]
        rows = names["table"].count()
        chosen = names["reader"].schema("OFFSET bigint, topic string").option("newest", "true").load()
        assert chosen.columns == ["OFFSET", "topic"]
        assert chosen.where("topic = 'planes'").count() == rows == len(found[0])
        with pytest.raises(PySparkException, match="topic plain is not compacted"):
            names["reader"].option("topic", "plain").load().count()
        changes = names["planes"]
        count, offsets = changes.count(), changes.select("offset").count()
    assert found == [{key: body for key, body in table.items() if body}] * 2
    assert count == offsets < 3000


@pytest.mark.timeout(300)
def test_a_stream_is_joined_with_a_table_of_changes_as_the_page_says(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    write, join = (
        block for block in re.findall(r"```py\n(.*?)```", SPARK.read_text(), re.DOTALL) if "customers" in block
    )
    names: dict[str, Any] = {"spark": spark, "nameserver": cluster.nameserver, "checkpoint": str(tmp_path)}
    with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
        admin.create_topic("customers", queues=2, compaction=Compaction())
        for topic in ("orders", "enriched"):
            admin.create_topic(topic, queues=1)
        producer.send(Message("customers", b"silver", keys=("ben",)))
        exec(write, names)
        for number, customer in enumerate(("anna", "ben")):
            producer.send(Message("orders", b"%d" % number, keys=(customer,)))
        exec(join, names)
        assert names["query"].awaitTermination(200)
        found = {message.keys: bytes(message.body) for message in read_all(cluster.nameserver, "enriched")}
        assert found == {("0",): b"gold"}  # ben was deleted
        changes = read_all(cluster.nameserver, "customers")
        assert [message.keys for message in changes if message.is_tombstone] == [("ben",)]
        producer.send(Message.tombstone("customers", "anna"))
        [queue] = {message.queue for message in read_all(cluster.nameserver, "customers") if message.keys == ("anna",)}
        assert queue.topic == "customers"  # the same as that of a Producer

        def rejection(frame: DataFrame, **options: str) -> str:
            given = {"nameserver": cluster.nameserver, "topic": "customers", **options}
            with pytest.raises(PySparkException) as caught:
                frame.write.format("minimq").options(**given).mode("append").save()
            return str(caught.value)

        empty = spark.createDataFrame([("anna", b"")], "key string, body binary")
        assert "column 'body' is empty in a row for the compacted topic customers" in rejection(empty)
        assert "column 'keys' has no key in a row" in rejection(empty.selectExpr("cast(null as string) keys", "body"))
        assert "column 'body' is null in a row" in rejection(names["changes"], topic="orders")
        transactional = spark.createDataFrame([("carl", b"new"), ("carl", None)], "key string, body binary").coalesce(1)
        given = {"nameserver": cluster.nameserver, "topic": "customers", "transactional": "true"}
        transactional.write.format("minimq").options(**given).mode("append").save()
        last = [message for message in read_all(cluster.nameserver, "customers") if message.keys == ("carl",)]
        assert [message.is_tombstone for message in last] == [False, True]
