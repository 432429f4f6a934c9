"""`spark.read.format("minimq")` on real clusters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable
from datetime import UTC, datetime

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, SendReceipt
from pyspark_minimq import reading
from pyspark_minimq.columns import MESSAGE_SCHEMA
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.options import parse_read_options
from pyspark_minimq.planning import OffsetRange
from pyspark_minimq.reading import RangePartition
from support.pages import blocks_of
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

Load = Callable[..., DataFrame]
Send = Callable[..., list[SendReceipt]]


@pytest.fixture
def load(spark: SparkSession, cluster: LocalCluster, topic: str) -> Load:
    """Make a data frame of the test's topic; options by name, the columns as `schema`."""

    def loading(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("minimq").options(**{"nameserver": cluster.nameserver, "topic": topic, **options})
        return (reader.schema(schema) if schema else reader).load()

    return loading


@pytest.fixture
def send(cluster: LocalCluster) -> Send:
    """Send messages, in one batch where there is room, and return their receipts."""

    def sending(messages: Iterable[Message], queue: MessageQueue | None = None) -> list[SendReceipt]:
        with Producer(cluster.nameserver) as producer:
            return producer.send_many(messages, queue=queue)

    return sending


def numbered(topic: str, numbers: Iterable[int]) -> list[Message]:
    return [Message(topic, b"%d" % number) for number in numbers]


def offsets_of(frame: DataFrame) -> dict[tuple[str, int], list[int]]:
    """Return the offsets that were read by queue."""
    read: dict[tuple[str, int], list[int]] = {}
    for row in frame.select("broker_name", "queue_id", "offset").collect():
        read.setdefault((row.broker_name, row.queue_id), []).append(row.offset)
    return read


def rejection(frame: Callable[[], DataFrame]) -> str:
    with pytest.raises((AnalysisException, PythonException)) as caught:
        frame().collect()
    return str(caught.value)


# ---- What is read -------------------------------------------------------------------------------


def test_every_message_comes_with_all_that_was_sent(load: Load, send: Send, topic: str) -> None:
    sent = [
        Message(
            topic,
            b"body %d" % number,
            tag=("paid", "größer", None)[number % 3],
            keys=[f"k{key}-ü" for key in range(number % 4)],
            properties={"region": "eu", "n": str(number)} if number % 2 else {},
        )
        for number in range(1000)
    ]
    before = datetime.now(UTC)
    receipts = send(sent)

    frame = load()
    rows = {row.message_id: row for row in frame.collect()}

    assert frame.schema == MESSAGE_SCHEMA
    assert len(rows) == len(sent)
    for message, receipt in zip(sent, receipts, strict=True):
        row = rows[receipt.message_id]
        queue = MessageQueue(row.topic, row.broker_name, row.queue_id)
        assert (queue, row.offset) == (receipt.queue, receipt.queue_offset)
        assert (bytes(row.body), row.tag) == (message.body, message.tag)
        assert (row["keys"], row.properties) == (list(message.keys), dict(message.properties))
    times = load("born_timestamp timestamp, store_timestamp timestamp")
    [(lowest, highest)] = times.selectExpr(
        "unix_millis(min(born_timestamp))", "unix_millis(max(store_timestamp))"
    ).collect()
    assert before.timestamp() * 1000 - 1 <= lowest <= highest <= time.time() * 1000


def test_each_queue_is_read_in_order_and_without_holes(load: Load, send: Send, topic: str) -> None:
    send(numbered(topic, range(2000)))
    read = offsets_of(load("broker_name string, queue_id int, offset bigint", minPartitions="20"))
    assert sum(map(len, read.values())) == 2000
    assert all(sorted(offsets) == list(range(len(offsets))) for offsets in read.values())


@pytest.mark.slow
def test_topics_by_pattern_and_chosen_queues(
    load: Load, send: Send, admin: Admin, new_name: Callable[[], str], cluster: LocalCluster, spark: SparkSession
) -> None:
    names = [new_name() for _ in range(2)]
    for name in names:
        admin.create_topic(name, queues=2)
        for queue in range(2):
            send(numbered(name, range(10)), MessageQueue(name, "broker-b", queue))
    source = spark.read.format("minimq").option("nameserver", cluster.nameserver)
    pattern = source.option("subscribepattern", names[0].rpartition("-")[0] + "-[0-9]+").load()
    assert {row.topic: row["count"] for row in pattern.groupBy("topic").count().collect()} == dict.fromkeys(names, 20)
    chosen = spark.read.format("minimq").option("nameserver", cluster.nameserver)
    frame = chosen.option("assign", json.dumps({names[0]: {"broker-b": [1]}})).load()
    assert offsets_of(frame) == {("broker-b", 1): list(range(10))}


def test_tags_are_chosen_wherever_they_are(load: Load, send: Send, topic: str) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    tags = ("paid", "open", None, "void")
    wanted = []
    for size in (5, 400, 3, 100, 1000):  # few are decoded one by one, many as columns
        sent = [Message(topic, b"%d" % n, tag=tags[n % 4]) for n in range(size)]
        wanted += [m for m in sent if m.tag in ("paid", "void")]
        send(sent, queue)
    send([Message(topic, b"x", tag="open") for _ in range(100)], queue)
    rows = load("body binary, tag string", tag="void || paid").collect()
    assert [(bytes(row.body), row.tag) for row in rows] == [(m.body, m.tag) for m in wanted]
    assert load("offset bigint", tag="paid", minPartitions="7").count() == sum(m.tag == "paid" for m in wanted)
    assert load("offset bigint", tag="nobody").count() == 0


def test_messages_are_counted_without_fetching_them(load: Load, send: Send, topic: str, admin: Admin) -> None:
    queue = MessageQueue(topic, "broker-b", 1)
    for _ in range(5):
        send(numbered(topic, range(1000)), queue)

    def delivered() -> int:
        return sum(status.report.messages_out for status in admin.broker_status() if status.report)

    before = delivered()
    frame = load("topic string, broker_name string, queue_id int, offset bigint", minPartitions="3")
    rows = frame.collect()
    assert [row.offset for row in rows] == list(range(5000))
    assert {row[:3] for row in rows} == {(topic, "broker-b", 1)}
    assert delivered() - before <= 3 * 1000  # a batch to see that a broker is there


def test_a_frame_reads_the_same_messages_every_time(load: Load, send: Send, topic: str) -> None:
    send(numbered(topic, range(10)))
    frame = load()
    assert frame.count() == 10
    send(numbered(topic, range(10)))
    assert frame.count() == 10
    assert load().count() == 20


def test_a_task_that_is_ended_early_ends_its_pull() -> None:
    with LocalCluster(brokers=1, broker_options={"metrics": "127.0.0.1:0", "log_format": "json"}) as own:
        with Admin(own.nameserver) as admin, Producer(own.nameserver) as producer:
            admin.create_topic("t", queues=1)
            producer.send_many(Message("t", bytes(1000)) for _ in range(50_000))  # more than is fetched ahead
        metrics = metrics_address(own.brokers[0].log_path)

        def pulls() -> float:
            return Scrape(metrics).value("minimq_broker_streams", call="pull")

        options = parse_read_options({"nameserver": own.nameserver, "topic": "t"})
        part = RangePartition([OffsetRange(MessageQueue("t", "broker-a", 0), 0, 50_000)])
        batches = reading.read(options, MESSAGE_SCHEMA, part)
        assert next(batches).num_rows
        assert pulls() == 1
        assert isinstance(batches, Generator)
        batches.close()  # as Spark does when it has its rows
        wait_until(lambda: pulls() == 0, 60)


# ---- From where to where ------------------------------------------------------------------------


def test_ranges_by_offset(load: Load, send: Send, topic: str) -> None:
    queues = [MessageQueue(topic, broker, queue) for broker in ("broker-a", "broker-b") for queue in range(4)]
    for queue in queues:
        for first in range(0, 200, 50):
            send(numbered(topic, range(first, first + 50)), queue)

    def all_at(offset: int) -> str:
        return json.dumps({topic: {b: dict.fromkeys(map(str, range(4)), offset) for b in ("broker-a", "broker-b")}})

    # Batches hold 50 messages, so the range begins and ends within one.
    read = offsets_of(load(startingOffsets=all_at(60), endingOffsets=all_at(177)))
    assert read == {(queue.broker_name, queue.queue_id): list(range(60, 177)) for queue in queues}
    assert load(startingOffsets=all_at(-2), endingOffsets=all_at(-1)).count() == 1600


@pytest.mark.slow
def test_ranges_by_time(load: Load, send: Send, topic: str) -> None:
    send(numbered(topic, range(100)))
    last = load().selectExpr("unix_millis(max(store_timestamp)) at").first()
    assert last is not None
    while time.time() * 1000 <= last.at + 1:
        time.sleep(0.001)
    middle = datetime.now(UTC)
    send(numbered(topic, range(100, 250)))

    assert load(startingTimestamp=middle.isoformat()).count() == 150
    assert load(endingTimestamp=str(round(middle.timestamp() * 1000))).count() == 100
    assert load(startingTimestamp="1", endingTimestamp="4102444800000").count() == 250
    assert load(startingTimestamp="4102444800000").count() == 0

    def each(last_of: str) -> str:
        times = {f"broker-{name}": {str(queue): "4102444800000" for queue in range(4)} for name in "ab"}
        times["broker-a"]["0"] = last_of
        return json.dumps({topic: times})

    first = "broker_name = 'broker-a' AND queue_id = 0"
    everything = load().where(first).count()
    later = load(startingTimestamp=middle.isoformat()).where(first).count()
    assert load(startingOffsetsByTimestamp=each("1")).count() == everything
    assert load(startingOffsetsByTimestamp=each(middle.isoformat())).count() == later
    assert load(endingOffsetsByTimestamp=each("1")).count() == 250 - everything
    assert load(endingOffsetsByTimestamp=each(middle.isoformat())).count() == 250 - later


# ---- What is rejected ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topc": "x"}, "unknown option 'topc'"),
        ({"topic": "nowhere"}, "topic nowhere is on no broker: create it with `minimq topic create nowhere`"),
        ({"nameserver": "127.0.0.1:1", "readTimeout": "1s"}, "no name server listening at 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(load: Load, options: dict[str, str], reason: str) -> None:
    # The traceback around it may quote the code that raises.
    *_, line = [line for line in rejection(lambda: load(**options)).splitlines() if reason in line]
    assert line.startswith("pyspark_minimq.errors.MinimqSparkError: ")


def test_a_column_that_is_not_there_is_rejected(load: Load) -> None:
    assert "there is no column 'value'" in rejection(lambda: load("value binary"))


@pytest.mark.parametrize("column", ["offset", "body"])
def test_messages_that_go_after_planning_fail_the_query_or_are_left_out(
    cluster: LocalCluster, send: Send, topic: str, column: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    send(numbered(topic, range(40)), queue)
    planned = RangePartition([OffsetRange(MessageQueue(topic, "broker-a", 0), 0, 100)])

    def count(**options: str) -> int:
        parsed = parse_read_options({"nameserver": cluster.nameserver, "topic": topic, **options})
        return sum(batch.num_rows for batch in reading.read(parsed, StructType([MESSAGE_SCHEMA[column]]), planned))

    with pytest.raises(MinimqSparkError, match=f"offsets 40 to 99 of queue {queue} cannot be read: it holds 0 to 39"):
        count()
    assert count(failOnDataLoss="false") == 40


@pytest.mark.fault
def test_a_task_outlives_a_restart_of_its_broker(spark: SparkSession) -> None:
    with LocalCluster(brokers=1) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("t", queues=1)
        with Producer(own.nameserver) as producer:
            producer.send_many(numbered("t", range(1000)))
        frame = spark.read.format("minimq").option("nameserver", own.nameserver).option("topic", "t").load()
        assert frame.count() == 1000
        own.brokers[0].kill()
        own.brokers[0].start()
        assert frame.count() == 1000


@pytest.mark.slow
def test_the_statements_of_the_page_read_a_topic(
    spark: SparkSession, send: Send, topic: str, cluster: LocalCluster
) -> None:
    send(numbered(topic, range(5)))
    [printed] = blocks_of("docs/spark.md", "sql")
    create, select, _ = printed.split(";")
    try:
        spark.sql(create)
        here = select.replace("127.0.0.1:9876", cluster.nameserver).replace("'orders'", f"'{topic}'")
        assert sum(row[1] for row in spark.sql(here).collect()) == 5
    finally:
        spark.sql("DROP TABLE IF EXISTS messages")
