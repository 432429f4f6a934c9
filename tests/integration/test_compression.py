"""Compressed batches through real brokers, to every kind of reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, PullConsumer
from minimq.connection.connection import Connection
from minimq.consuming.range_reader import RangeReader
from minimq.features.tables.columns import MESSAGE_SCHEMA, ArrowColumns
from minimq.sending.append_stream import AppendStream
from minimq_broker.backup.check import check_directory
from minimq_common.batch import header as batch
from minimq_common.batch.builder import BatchBuilder
from minimq_common.batch.compression import Compression
from minimq_common.errors import CorruptBatch, MinimqError
from minimq_proto.v1 import broker_pb2
from support.batches import ALWAYS, sealed
from support.waiting import wait_until

TIMEOUT_S = 30.0
TAGS = ["paid", "refunded", None]


class RawSender:
    """Appends batches to one broker as they are."""

    def __init__(self, address: str) -> None:
        self._connection = Connection([address])  # which is not asked for routes
        self._stream = AppendStream(self._connection, address)

    def append(self, queue: MessageQueue, data: bytes) -> int:
        """Return the first offset of the batch."""
        answered: Future[int] = Future()

        def answer(result: broker_pb2.AppendResult | None, error: MinimqError | None) -> None:
            if result is None:
                answered.set_exception(error or AssertionError("neither a result nor an error"))
            else:
                answered.set_result(result.base_offset)

        self._connection.call_soon(self._stream.append, queue, data, answer)  # it belongs to the loop
        return answered.result(TIMEOUT_S)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def sender(cluster: LocalCluster) -> Iterator[RawSender]:
    with closing(RawSender(cluster.brokers[0].address)) as made:
        yield made


@pytest.fixture
def queue(topic: str) -> MessageQueue:
    return MessageQueue(topic, "broker-a", 0)


def orders(topic: str, first: int, count: int) -> list[Message]:
    return [
        Message(
            topic,
            json.dumps({"order": number, "city": "Zürich", "lines": [{"article": number % 7, "pieces": 1}]}).encode(),
            tag=TAGS[number % 3],
            keys=[f"order-{number}", "kühl"][: number % 3],
            properties={"from": "Zürich", "number": str(number)} if number % 2 else {},
        )
        for number in range(first, first + count)
    ]


def encoded(messages: list[Message], compression: Compression | None) -> bytes:
    builder = BatchBuilder(1 << 20, compression)
    builder.add(messages)
    return builder.build(1_700_000_000_000, producer_id=0, sequence=0)


@pytest.fixture
def stored(sender: RawSender, queue: MessageQueue) -> list[Message]:
    """Fill a queue with batches of 100 and of 5 records, every second one compressed."""
    sent: list[Message] = []
    for number, count in enumerate([100, 100, 5, 5, 100]):
        messages = orders(queue.topic, len(sent), count)
        data = encoded(messages, ALWAYS if number % 2 else None)
        assert batch.read_header(data).codec == number % 2
        assert sender.append(queue, data) == len(sent)
        sent += messages
    return sent


def test_tags_are_chosen_without_opening_anything_at_the_broker(
    cluster: LocalCluster, sender: RawSender, queue: MessageQueue, stored: list[Message], new_name: Callable[[], str]
) -> None:
    """The last batch has no record that is wanted: only the hashes in its header say so."""
    unwanted = [Message(queue.topic, b"x" * 100, tag="lost") for _ in range(100)]
    sender.append(queue, encoded(unwanted, ALWAYS))
    with PullConsumer(cluster.nameserver, group=new_name(), auto_commit=False) as consumer:
        consumer.subscribe(queue.topic, "refunded")
        got: list[bytes] = []

        def all_there() -> bool:
            got.extend(message.body for message in consumer.poll(0.05))
            return len(got) >= len(stored) // 3 and consumer.at_end()

        wait_until(all_there, TIMEOUT_S)
    assert got == [message.body for message in stored if message.tag == "refunded"]


def test_spark_gets_the_same_columns(cluster: LocalCluster, queue: MessageQueue, stored: list[Message]) -> None:
    reader = RangeReader(cluster.nameserver)
    start, end = 50, len(stored) - 50  # in the middle of batches
    try:
        parts = list(ArrowColumns(MESSAGE_SCHEMA).convert(reader.read(queue, start, end), start, end))
    finally:
        reader.close()
    rows = [row for part in parts for row in part.to_pylist()]
    wanted = stored[start:end]
    assert [row["offset"] for row in rows] == list(range(start, end))
    assert [row["body"] for row in rows] == [message.body for message in wanted]
    assert [row["tag"] for row in rows] == [message.tag for message in wanted]
    assert [row["keys"] for row in rows] == [list(message.keys) for message in wanted]
    assert [dict(row["properties"]) for row in rows] == [dict(message.properties) for message in wanted]


def test_a_frame_that_cannot_be_opened_stops_a_reader_and_not_the_queue(tmp_path: Path) -> None:
    """Brokers do not look inside: such a batch is the fault of its sender, and readers are told how to pass it."""
    queue = MessageQueue("t", "broker-a", 0)
    good = encoded(orders("t", 0, 100), ALWAYS)
    bad = sealed(good[:-20] + bytes(16))  # what a frame says of its content is at its beginning
    with LocalCluster(brokers=1, data_dir=tmp_path) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=1)
        with closing(RawSender(cluster.brokers[0].address)) as sender:
            assert [sender.append(queue, data) for data in (bad, good)] == [0, 100]
        with PullConsumer(cluster.nameserver, group="g", auto_commit=False) as consumer:
            consumer.assign([queue])
            with pytest.raises(CorruptBatch, match=r"cannot be opened.* seek to 100"):
                wait_until(lambda: consumer.poll(0.05), TIMEOUT_S)
            consumer.seek(queue, 100)
            assert len(wait_until(lambda: consumer.poll(0.05), TIMEOUT_S)) == 100

    report = check_directory(cluster.brokers[0].data_dir)
    assert (report.messages, len(report.findings)) == (200, 1)
    assert "cannot be opened" in report.findings[0].damage
