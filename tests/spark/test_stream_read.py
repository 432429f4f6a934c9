"""`spark.readStream.format("minimq")` on real clusters."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, WorkQueueConsumer, WorkQueueMessage
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

DOCS = Path(__file__).parents[2] / "docs" / "spark.md"
COLUMNS = "topic string, broker_name string, queue_id int, offset bigint, body binary"


class Sink:
    """Keeps what micro-batches bring, by their number."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.failing = False

    def take(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = frame.collect()
        if self.failing:
            raise RuntimeError("this sink fails")

    @property
    def sizes(self) -> list[int]:
        return [len(rows) for rows in self.batches.values() if rows]

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.batches.values() for row in rows]

    @property
    def numbers(self) -> list[int]:
        return sorted(int(row.body) for row in self.rows)

    def offsets(self) -> dict[MessageQueue, list[int]]:
        read: dict[MessageQueue, list[int]] = {}
        for row in self.rows:
            read.setdefault(MessageQueue(row.topic, row.broker_name, row.queue_id), []).append(row.offset)
        return read


class Streams:
    """Starts queries that read from a cluster, each from the checkpoint of the test."""

    def __init__(self, spark: SparkSession, nameserver: str, folder: Path) -> None:
        self._spark = spark
        self._nameserver = nameserver
        self._folder = folder
        self.started: list[StreamingQuery] = []

    def start(
        self, sink: Sink, trigger: dict[str, Any] | None = None, checkpoint: str = "c", **options: str
    ) -> StreamingQuery:
        source = self._spark.readStream.format("minimq").options(nameserver=self._nameserver, **options)
        writer = source.schema(COLUMNS).load().writeStream.foreachBatch(sink.take)
        writer = writer.option("checkpointLocation", str(self._folder / checkpoint))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        self.started.append(query)
        return query

    def run(self, sink: Sink, checkpoint: str = "c", **options: str) -> StreamingQuery:
        """Read all there is now."""
        query = self.start(sink, {"availableNow": True}, checkpoint, **options)
        assert query.awaitTermination(200)
        return query


@pytest.fixture
def streams(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> Iterator[Streams]:
    made = Streams(spark, cluster.nameserver, tmp_path)
    yield made
    for query in made.started:
        query.stop()


def numbered(topic: str, numbers: Iterable[int]) -> list[Message]:
    return [Message(topic, b"%d" % number) for number in numbers]


def test_each_message_comes_once_and_in_order_also_after_a_restart(
    streams: Streams, producer: Producer, topic: str
) -> None:
    first, second = Sink(), Sink()
    producer.send_many(numbered(topic, range(500)))
    query = streams.start(first, {"processingTime": "100 milliseconds"}, topic=topic, startingOffsets="earliest")
    query.processAllAvailable()
    assert first.numbers == list(range(500))
    producer.send_many(numbered(topic, range(500, 900)))
    query.processAllAvailable()
    query.stop()
    assert first.numbers == list(range(900))

    producer.send_many(numbered(topic, range(900, 1000)))
    query = streams.start(second, topic=topic, startingOffsets="earliest")  # where it begins is not looked at again
    query.processAllAvailable()
    query.stop()
    assert second.numbers == list(range(900, 1000))
    earlier, later = first.offsets(), second.offsets()
    for queue in earlier.keys() | later.keys():
        together = earlier.get(queue, []) + later.get(queue, [])
        assert together == list(range(len(together)))


def test_workers_that_take_messages_one_by_one_and_a_stream_do_not_disturb_each_other(
    streams: Streams, cluster: LocalCluster, producer: Producer, topic: str, admin: Admin
) -> None:
    sink, worked = Sink(), list[WorkQueueMessage]()
    producer.send_many(numbered(topic, range(500)))
    with WorkQueueConsumer(cluster.nameserver, group=f"g-{topic}", invisible_s=600) as worker:
        worker.subscribe(topic)
        while len(worked) < 250:
            worked += worker.receive(60)
        worker.ack(worked[::2])  # settled and unsettled ones by turns
        before = admin.describe_group(f"g-{topic}")
        streams.run(sink, topic=topic, startingOffsets="earliest")
        assert sink.numbers == list(range(500))
        after = admin.describe_group(f"g-{topic}")
        assert (after.in_flight, after.lag) == (before.in_flight, before.lag)
        assert (after.in_flight, after.lag) == (len(worked[1::2]), 500 - len(worked[::2]))
        worker.ack(worked[1::2])
        while len(worked) < 500:
            messages = worker.receive()
            worker.ack(messages)
            worked += messages
    assert sorted(int(message.body) for message in worked) == list(range(500))
    assert {message.delivery_count for message in worked} == {1}
    assert admin.describe_group(f"g-{topic}").lag == 0


def test_all_there_is_comes_in_parts_that_keep_to_the_limit(
    streams: Streams, producer: Producer, topic: str, admin: Admin
) -> None:
    sink, once = Sink(), Sink()
    options = {"topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "300"}
    producer.send_many(numbered(topic, range(1000)))
    query = streams.run(sink, consumerGroup=f"g-{topic}", minOffsetsPerTrigger="150", **options)
    assert sink.sizes == [300, 300, 300, 100]
    assert sink.numbers == list(range(1000))

    # What was read shows at the broker at once, and what was not in Spark's progress.
    committed = admin.committed_offsets(f"g-{topic}", topic)
    assert committed == {queue.queue: queue.max_offset for queue in admin.describe_topic(topic).queues}
    latest = [json.loads(progress.sources[0].latestOffset) for progress in query.recentProgress]
    assert [at["behind"] for at in latest[:4]] == [700, 400, 100, 0]

    producer.send_many(numbered(topic, range(1000, 1010)))
    streams.run(sink, **options)
    assert sink.numbers == list(range(1010))

    query = streams.start(once, {"once": True}, "other", **options)
    assert query.awaitTermination(200)
    assert once.sizes == [1010]


def test_bytes_are_limited_about(streams: Streams, producer: Producer, topic: str) -> None:
    sink = Sink()
    producer.send_many(Message(topic, (b"%d" % number).rjust(1000)) for number in range(1000))
    streams.run(sink, topic=topic, startingOffsets="earliest", maxBytesPerTrigger="300k")
    assert sink.numbers == list(range(1000))
    assert all(250 <= size <= 310 for size in sink.sizes[:3])


def test_a_stream_that_begins_at_the_end_goes_on_there_after_a_restart(
    streams: Streams, producer: Producer, topic: str
) -> None:
    sink = Sink()
    producer.send_many(numbered(topic, range(100)))
    query = streams.start(sink, topic=topic)
    wait_until(lambda: 0 in sink.batches, 100)  # it is empty, and records where the stream begins
    query.stop()
    producer.send_many(numbered(topic, range(100, 200)))  # while nobody reads
    streams.run(sink, topic=topic)
    assert sink.numbers == list(range(100, 200))


def test_messages_of_a_first_micro_batch_that_failed_are_read_again(
    streams: Streams, producer: Producer, topic: str
) -> None:
    sent, stop = iter(range(1_000_000)), threading.Event()
    count = 0

    def send() -> None:
        nonlocal count
        while not stop.is_set():
            producer.send_many(numbered(topic, [next(sent) for _ in range(10)]))
            count += 10

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for attempt in range(10):
            failed, checkpoint = Sink(), f"attempt-{attempt}"
            failed.failing = True
            query = streams.start(failed, checkpoint=checkpoint, topic=topic)
            with pytest.raises(StreamingQueryException, match="this sink fails"):
                query.awaitTermination(200)
            if failed.numbers:  # messages came after the stream knew where it begins
                break
        else:
            pytest.fail("no first micro-batch had a message")
    finally:
        stop.set()
        sender.join()
    again = Sink()
    streams.run(again, checkpoint, topic=topic)
    assert again.batches[0] == failed.batches[0]
    assert again.numbers == list(range(failed.numbers[0], count))


def test_new_queues_and_topics_are_found_while_it_runs(
    streams: Streams, producer: Producer, admin: Admin, new_name: Callable[[], str]
) -> None:
    first, later = new_name(), new_name()
    prefix = first.rpartition("-")[0]
    sink = Sink()
    admin.create_topic(first, queues=1, brokers=["broker-a"])
    query = streams.start(sink, subscribePattern=f"{prefix}-.*")
    wait_until(lambda: 0 in sink.batches, 100)

    admin.create_topic(first, queues=1, brokers=["broker-b"])
    admin.update_topic(first, queues=2)
    admin.create_topic(later, queues=1)
    queues = [
        MessageQueue(first, "broker-a", 1),
        MessageQueue(first, "broker-b", 0),
        MessageQueue(later, "broker-b", 0),
    ]
    for queue in queues:
        producer.send_many(numbered(queue.topic, range(10)), queue=queue)
    wait_until(lambda: len(sink.rows) == 30, 100)
    assert sink.offsets() == {queue: list(range(10)) for queue in queues}
    query.stop()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topic": "nowhere"}, "topic nowhere is on no broker: create it with `minimq topic create nowhere`"),
        (
            {"endingOffsets": "latest"},
            "option 'endingOffsets' is for spark.read: spark.readStream has nameserver, credentials,",
        ),
        (
            {"assign": '{"t": 5}', "topic": ""},
            'must look like {"topic": {"broker": [queue, queue]}}: Expected `object`',
        ),
        ({"nameserver": "127.0.0.1:1", "readTimeout": "1s"}, "no name server listening at 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_followed_is_said_in_one_line(
    streams: Streams, spark: SparkSession, cluster: LocalCluster, topic: str, options: dict[str, str], reason: str
) -> None:
    source = spark.readStream.format("minimq").options(**{"nameserver": cluster.nameserver, "topic": topic, **options})
    with pytest.raises(Exception, match=r"MinimqSparkError|NotFound|Unavailable") as caught:  # noqa: PT012
        query = source.schema(COLUMNS).load().writeStream.foreachBatch(Sink().take).start()
        streams.started.append(query)
        query.awaitTermination(100)
    assert [line for line in str(caught.value).splitlines() if reason in line]


def test_lag_is_told_for_a_micro_batch_that_is_repeated_too(
    spark: SparkSession, streams: Streams, producer: Producer, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    producer.send_many(numbered(topic, range(100)))
    failed, again = Sink(), Sink()
    failed.failing = True
    with pytest.raises(StreamingQueryException, match="this sink fails"):
        streams.run(failed, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="60")
    [block] = [
        text for text in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "LagListener" in text
    ]
    names: dict[str, Any] = {"spark": spark}
    exec(block, names)
    try:
        query = streams.run(again, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="60")
        told = ""

        def tell() -> str:
            nonlocal told
            told += capfd.readouterr().out
            return told

        wait_until(lambda: f"{topic}: 40 read, 0 behind" in tell(), 60)
    finally:
        for listener in names["listeners"]:
            spark.streams.removeListener(listener)
    repeated, last = (progress.sources[0] for progress in query.recentProgress[:2])
    assert (repeated.numInputRows, last.numInputRows) == (60, 40)
    assert repeated.latestOffset in (None, "null", "None")
    assert json.loads(repeated.endOffset)["behind"] == json.loads(last.endOffset)["behind"] + 40 == 40
    assert f"{topic}: 60 read, 40 behind" in told
    assert again.numbers == list(range(100))
