"""`df.write.format("minimq")` on real clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from minimq import Admin, LocalCluster, ReceivedMessage
from minimq.sending.selectors import java_hash
from support.failing_sink import AFTER_COMMIT, AFTER_WRITE, BEFORE_COMMIT, FailingDataSource, Faults
from support.reading import read_all

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

#: How Spark begins an error that came before there were tasks.
IN_THE_PLAN = "Failed to initialize Python data source writer"

Save = Callable[..., None]
Stored = Callable[[], list[ReceivedMessage]]


@pytest.fixture
def save(cluster: LocalCluster, topic: str) -> Save:
    """Write a data frame to the test's topic; options by name."""

    def saving(frame: DataFrame, sink: str = "minimq", mode: str = "append", **options: str) -> None:
        given = {"nameserver": cluster.nameserver, "topic": topic, **options}
        frame.write.format(sink).mode(mode).options(**given).save()

    return saving


@pytest.fixture
def stored(cluster: LocalCluster, topic: str) -> Stored:
    """Return what is in the test's topic."""
    return lambda: read_all(cluster.nameserver, topic)


def numbers(messages: Iterable[ReceivedMessage]) -> list[int]:
    return sorted(int(message.body) for message in messages)


def rejection(do: Callable[[], object]) -> str:
    """Return the line in which an error of ours says what is wrong."""
    with pytest.raises(PySparkException) as caught:
        do()
    text = str(caught.value)
    lines = [line.partition("MinimqSparkError: ")[2] for line in text.splitlines() if "MinimqSparkError: " in line]
    assert lines, text
    assert "During handling of the above exception" not in text
    return lines[-1]


# ---- What is written -----------------------------------------------------------------------------


def test_all_columns_arrive(spark: SparkSession, save: Save, stored: Stored) -> None:
    frame = spark.range(0, 3000, 1, 2).selectExpr(
        "concat('body ', id) AS body",
        "CASE id % 3 WHEN 0 THEN 'paid' WHEN 1 THEN 'größer' END AS tag",
        "CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN array() WHEN 2 THEN array(concat('k-', id))"
        " ELSE array(concat('k-', id), 'ü') END AS keys",
        "CASE WHEN id % 2 = 1 THEN map('region', 'eu', 'n', string(id)) END AS properties",
    )
    save(frame)
    found = {message.body: message for message in stored()}
    assert len(found) == 3000
    for number in range(3000):
        message = found[b"body %d" % number]
        assert message.tag == ("paid", "größer", None)[number % 3]
        assert message.keys == ((), (), (f"k-{number}",), (f"k-{number}", "ü"))[number % 4]
        assert message.properties == ({"region": "eu", "n": str(number)} if number % 2 else {})


def test_rows_as_for_kafka(spark: SparkSession, save: Save, stored: Stored, topic: str, admin: Admin) -> None:
    headers = "array(named_struct('key', 'n', 'value', CAST(string(id) AS binary)))"
    key = "CAST(concat('k-', id % 3) AS binary) AS key"
    save(spark.range(0, 30, 1, 1).selectExpr("string(id) AS value", key, f"{headers} AS headers"))
    queues = admin.route(topic).write_queues()
    found = stored()
    assert numbers(found) == list(range(30))
    for message in found:
        [key] = message.keys
        assert key == f"k-{int(message.body) % 3}"
        assert message.properties == {"n": message.body.decode()}
        assert message.queue == queues[abs(java_hash(key)) % 8]


def test_rows_are_spread_over_all_queues_in_full_batches(spark: SparkSession, save: Save, stored: Stored) -> None:
    save(spark.range(0, 60_000, 1, 2).selectExpr("lpad(string(id), 1000, '0') AS body"), compression="zstd")
    found = stored()
    assert numbers(found) == list(range(60_000))
    per_queue = Counter(message.queue for message in found)
    assert len(per_queue) == 8
    assert max(per_queue.values()) < 3 * min(per_queue.values())


def test_rows_of_one_key_stay_in_order_in_one_queue(
    spark: SparkSession, save: Save, cluster: LocalCluster, topic: str, admin: Admin
) -> None:
    frame = spark.range(0, 25_000, 1, 1).selectExpr(
        "string(id) AS body", "concat('customer-', id % 50) AS sharding_key"
    )
    save(frame)
    queues = admin.route(topic).write_queues()
    latest: dict[int, int] = {}
    found = read_all(cluster.nameserver, topic)
    assert numbers(found) == list(range(25_000))
    for message in found:
        number = int(message.body)
        key = number % 50
        assert message.queue == queues[abs(java_hash(f"customer-{key}")) % 8]
        assert latest.get(key, -1) < number
        latest[key] = number


def test_large_bodies_travel_in_batches_that_brokers_take(spark: SparkSession, save: Save, stored: Stored) -> None:
    save(spark.range(0, 20, 1, 1).selectExpr("lpad(string(id), 4 << 20, ' ') AS body"))
    assert numbers(stored()) == list(range(20))


def test_what_was_read_can_be_written(
    spark: SparkSession, cluster: LocalCluster, admin: Admin, new_name: Callable[[], str], save: Save, topic: str
) -> None:
    save(
        spark.range(2000).selectExpr(
            "string(id) AS body", "'t' AS tag", "array('k') AS keys", "map('a', 'b') properties"
        )
    )
    copy = new_name()
    admin.create_topic(copy, queues=4)
    source = spark.read.format("minimq").option("nameserver", cluster.nameserver).option("topic", topic).load()
    own = source.drop("offset", "born_timestamp", "store_timestamp", "message_id")
    save(own, topic=copy)

    def shown(name: str) -> list[object]:
        return [
            (m.queue.broker_name, m.queue.queue_id, m.body, m.tag, m.keys, m.properties)
            for m in sorted(read_all(cluster.nameserver, name), key=lambda m: (m.queue, int(m.body)))
        ]

    assert shown(copy) == shown(topic)


# ---- All at once ---------------------------------------------------------------------------------


@pytest.fixture
def faults(spark: SparkSession, tmp_path: Path) -> Faults:
    spark.dataSource.register(FailingDataSource)
    return Faults(tmp_path)


def test_a_transaction_shows_all_rows_or_none(
    spark: SparkSession, save: Save, stored: Stored, faults: Faults, tmp_path: Path
) -> None:
    frame = spark.range(0, 4000, 1, 2).selectExpr("string(id) AS body", "string(id % 7) AS sharding_key")

    def failing(where: str, transactional: str) -> None:
        faults.plan(where)
        with pytest.raises(PySparkException, match=f"a planned fault {where}"):
            save(frame, "minimq_failing", transactional=transactional, faults=str(tmp_path))

    for where in (AFTER_WRITE, BEFORE_COMMIT):
        failing(where, "true")
        assert stored() == []
    failing(AFTER_COMMIT, "true")
    assert numbers(stored()) == list(range(4000))
    save(frame, "minimq_failing", transactional="true", faults=str(tmp_path))  # another write, not a repetition
    assert numbers(stored()) == sorted([*range(4000)] * 2)


def test_without_a_transaction_rows_are_there_when_the_write_fails(
    spark: SparkSession, save: Save, stored: Stored, faults: Faults, tmp_path: Path
) -> None:
    faults.plan(BEFORE_COMMIT)
    with pytest.raises(PySparkException, match="a planned fault"):
        save(spark.range(10).selectExpr("string(id) AS body"), "minimq_failing", faults=str(tmp_path))
    assert numbers(stored()) == list(range(10))


# ---- What is rejected -----------------------------------------------------------------------------


def test_before_anything_is_sent(spark: SparkSession, save: Save) -> None:
    frame = spark.range(1).selectExpr("string(id) AS body", "id AS offset")
    assert "'offset' cannot be written" in rejection(lambda: save(frame))
    good = frame.drop("offset")
    assert "messages are appended to a topic and never replace others" in rejection(
        lambda: save(good, mode="overwrite")
    )
    assert "unknown option 'topics'" in rejection(lambda: save(good, topics="t"))
    assert "no topic is given" in rejection(lambda: good.write.format("minimq").mode("append").save())


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("nullif(string(id), '7') AS body", "column 'body' is null in a row"),
        ("IF(id = 7, repeat('x', 4194305), 'x') AS body", "'body' has 4194305 bytes in a row, the limit is 4194304"),
        ("'x' AS body, array('a', nullif(string(id), '7')) AS keys", "column 'keys' has a key that is null"),
        ("'x' AS body, concat('a', char(IF(id = 7, 0, 65))) AS tag", "column 'tag' has a NUL character in a row"),
        ("'x' AS body, int(-id) AS queue_id", "column 'queue_id' is -"),
        ("'x' AS body, 17 AS queue_id, 'broker-a' AS broker_name", "/broker-a/17 to write to: its broker has 4"),
    ],
)  # fmt: skip
def test_in_a_task(spark: SparkSession, save: Save, columns: str, text: str) -> None:
    spark.range(0, 20, 1, 1).createOrReplaceTempView("numbers")
    assert text in rejection(lambda: save(spark.sql(f"SELECT {columns} FROM numbers")))


def test_a_fifo_topic_is_rejected_since_rows_have_no_message_group(
    spark: SparkSession, save: Save, admin: Admin, new_name: Callable[[], str]
) -> None:
    ordered = new_name()
    admin.create_topic(ordered, queues=1, fifo=True)
    frame = spark.range(1).selectExpr("string(id) AS body", "map('MESSAGE_GROUP', 'g') AS properties")
    assert f"topic '{ordered}' is a FIFO topic" in rejection(lambda: save(frame, topic=ordered))
    assert admin.describe_topic(ordered).messages == 0


def test_a_topic_that_there_is_not_and_a_server_that_there_is_not(spark: SparkSession, save: Save) -> None:
    frame = spark.range(1).selectExpr("string(id) AS body")
    with pytest.raises(PySparkException, match=f"(?s){IN_THE_PLAN}.*there-is-none"):
        save(frame, topic="there-is-none")
    assert "127.0.0.1:1" in rejection(lambda: save(frame, nameserver="127.0.0.1:1", sendTimeout="1s"))
    assert "illegal topic name 'a b'" in rejection(lambda: save(frame, topic="a b"))
