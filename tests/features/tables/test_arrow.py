"""Topics as Arrow columns through real brokers: what is read and sent is what messages give."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

import minimq.arrow
from minimq import Admin, Compaction, LocalCluster, Message, MessageQueue, Producer, PullConsumer, ReceivedMessage, aio
from minimq.arrow import MESSAGE_SCHEMA, RangeOptions
from minimq.errors import InvalidArgument, OffsetOutOfRange, QueueNotFound, TopicNotFound, TransportError
from support.cases import for_each
from support.chance import SEED
from support.reading import read_all
from support.replicas import replicas, wait_for_master
from support.waiting import wait_until

TIMEOUT_S = 60.0


def row_of(message: ReceivedMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "broker_name": message.queue.broker_name,
        "queue_id": message.queue.queue_id,
        "offset": message.queue_offset,
        "body": message.body,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": list(message.properties.items()),
        "born_timestamp": message.born_at,
        "store_timestamp": message.stored_at,
        "message_id": message.message_id,
    }


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["broker_name"], row["queue_id"], row["offset"]))


def sent_at_random(topic: str, count: int) -> list[Message]:
    chance = random.Random(SEED)
    return [
        Message(
            topic,
            chance.randbytes(chance.choice((1, 10, 2_000))),
            tag=chance.choice((None, "paid", "refunded")),
            keys=[f"k-{chance.randrange(9)}"] * chance.randrange(3),
            properties={"n": str(number)} if chance.random() < 0.5 else {},
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_is_read_is_what_messages_give(
    cluster: LocalCluster, topic: str, compression: Literal["none", "zstd"]
) -> None:
    with Producer(cluster.nameserver, compression=compression) as producer:
        producer.send_many(sent_at_random(topic, 3_000))
        for message in sent_at_random(topic, 40):  # batches of one
            producer.send(message)
        with producer.transaction() as tx:
            tx.send(Message(topic, b"in a transaction"))
        producer.send(Message(topic, b"later", deliver_after_s=0.01))
    wait_until(lambda: b"later" in {message.body for message in read_all(cluster.nameserver, topic)}, TIMEOUT_S)
    expected = in_order([row_of(message) for message in read_all(cluster.nameserver, topic)])
    assert len(expected) >= 3_042  # a busy broker has some twice, which were sent to another one as well
    table = minimq.arrow.read_table(topic, cluster.nameserver)
    assert table.schema.equals(MESSAGE_SCHEMA)
    table.validate(full=True)
    assert table.to_pylist() == expected
    tagged = minimq.arrow.read_table(topic, cluster.nameserver, tags=["paid"], columns=["tag", "offset"])
    assert tagged.to_pylist() == [{"tag": "paid", "offset": row["offset"]} for row in expected if row["tag"] == "paid"]
    many = [f"t-{number}" for number in range(1_500)] + ["paid"]  # more than a broker looks for
    assert minimq.arrow.read_table(topic, cluster.nameserver, tags=many, columns=["tag", "offset"]).equals(tagged)


def test_a_range_by_time_and_by_offsets(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"before")] * 100)
        # A moment between the two, by the clock of the broker, which is that of this machine.
        moment = datetime.now(UTC) + timedelta(milliseconds=5)
        wait_until(lambda: datetime.now(UTC) > moment + timedelta(milliseconds=5))
        producer.send_many([Message(topic, b"after")] * 50)

    def bodies(**bounds: Any) -> list[bytes]:
        table = minimq.arrow.read_table(topic, cluster.nameserver, columns=["body"], **bounds)
        return list(table["body"].to_pylist())

    assert sorted(bodies()) == [b"after"] * 50 + [b"before"] * 100
    assert bodies(start=moment) == [b"after"] * 50
    assert bodies(end=moment) == [b"before"] * 100
    assert bodies(start="latest") == []
    assert len(bodies(start="-1h", end="latest")) == 150
    ends = {each.queue: each.max_offset for each in admin.describe_topic(topic).queues}
    queue, end = max(ends.items(), key=lambda item: item[1])
    assert len(bodies(queues=[queue], start={queue: end - 3})) == 3
    assert len(bodies(queues=[queue], end={queue: 2})) == 2
    assert len(bodies(start=ends)) == 0


@pytest.mark.fault
def test_a_broker_that_hangs_stops_only_reads_of_its_queues() -> None:
    options = RangeOptions(max_wait_s=3.0, answer_timeout_s=1.0)
    with LocalCluster(brokers=2) as own, Admin(own.nameserver) as admin, Producer(own.nameserver) as producer:
        admin.create_topic("t", queues=1)
        here = MessageQueue("t", "broker-a", 0)
        producer.send(Message("t", b"x"), queue=here)
        own.server("broker-b").pause()
        with pytest.raises(TransportError, match="topic t cannot be read as a whole: broker-b: "):
            minimq.arrow.read("t", own.nameserver, options=options)
        assert minimq.arrow.read_table("t", own.nameserver, queues=[here]).num_rows == 1


def test_polls_commit_as_polls_of_messages_do(cluster: LocalCluster, topic: str, group: str) -> None:
    with Producer(cluster.nameserver) as producer:
        sent = sent_at_random(topic, 2_000)
        producer.send_many(sent)
    polled: list[dict[str, Any]] = []
    with PullConsumer(cluster.nameserver, group=group, auto_commit=False) as consumer:
        consumer.subscribe(topic)
        while len(polled) < 1_000:
            table = consumer.poll_arrow(TIMEOUT_S, max_messages=300)
            assert 0 < table.num_rows <= 300
            table.validate(full=True)
            polled += table.to_pylist()
        consumer.commit()
    with PullConsumer(cluster.nameserver, group=group) as consumer:
        consumer.subscribe(topic)
        while len(polled) < len(sent):
            polled += consumer.poll_arrow(TIMEOUT_S).to_pylist()
        assert consumer.poll_arrow(0.1, columns=["body"]).schema.names == ["body"]
    assert in_order(polled) == in_order([row_of(message) for message in read_all(cluster.nameserver, topic)])


def test_arrow_with_asyncio(cluster: LocalCluster, topic: str, group: str) -> None:
    async def copied() -> int:
        rows = pa.table({"body": [b"a", b"b"], "tag": ["x", None]})
        async with aio.Producer(cluster.nameserver) as producer:
            receipts = await producer.send_arrow(topic, rows)
        assert sum(receipt.count for receipt in receipts) == 2
        count = 0
        async with aio.PullConsumer(cluster.nameserver, group=group) as consumer:
            consumer.subscribe(topic)
            while count < 2:
                count += (await consumer.poll_arrow(TIMEOUT_S)).num_rows
        return count

    assert asyncio.run(copied()) == 2


def test_a_copy_of_a_topic_has_the_same_messages(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    target = f"{topic}-copy"
    admin.create_topic(target, queues=3)
    with Producer(cluster.nameserver) as producer:
        producer.send_many(sent_at_random(topic, 3_000))
        content = ["body", "tag", "keys", "properties"]
        batches = minimq.arrow.read(topic, cluster.nameserver, columns=content)
        reader = pa.RecordBatchReader.from_batches(pa.schema([MESSAGE_SCHEMA.field(name) for name in content]), batches)
        receipts = producer.send_arrow(target, reader)
    assert sum(receipt.count for receipt in receipts) == 3_000
    assert {receipt.queue.topic for receipt in receipts} == {target}

    def contents(name: str) -> list[tuple[Any, ...]]:
        return sorted(
            (message.body, message.tag or "", message.keys, sorted(message.properties.items()))
            for message in read_all(cluster.nameserver, name)
        )

    assert contents(target) == contents(topic)
    admin.delete_topic(target)


def test_rows_say_where_they_go(cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]) -> None:
    other = new_name()
    admin.create_topic(other, queues=1)
    rows = pa.table(
        {
            "topic": pa.array([topic, other, topic]).dictionary_encode(),
            "value": ["a", "b", "c"],
            "key": [b"k-1", b"k-2", b"k-1"],
        }
    )
    with Producer(cluster.nameserver) as producer:
        producer.send_arrow(None, rows)
    first, second = (read_all(cluster.nameserver, name) for name in (topic, other))
    assert sorted(message.body for message in first) == [b"a", b"c"]
    assert len({message.queue for message in first}) == 1  # of one key
    assert [(message.body, message.keys) for message in second] == [(b"b", ("k-2",))]
    admin.delete_topic(other)


def test_the_table_of_a_compacted_topic(tmp_path: Path) -> None:
    chance, table = random.Random(SEED), dict[str, bytes]()
    options = {"segment_bytes": 1 << 17, "upkeep_interval_s": 0.05}
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options=options) as own, Admin(own.nameserver) as admin:
        admin.create_topic("state", queues=2, compaction=Compaction(dirty_ratio=0.01))
        messages = []
        for number in range(4_000):
            key = f"k-{chance.randrange(50)}"
            table[key] = b"" if chance.random() < 0.1 else b"%d" % number + bytes(200)
            value = table[key]
            messages.append(Message("state", value, keys=(key,)) if value else Message.tombstone("state", key))
        with Producer(own.nameserver) as producer:
            for first in range(0, len(messages), 50):
                producer.send_many(messages[first : first + 50])
        wanted = {key: body for key, body in table.items() if body}

        def found() -> tuple[int, dict[str, bytes]]:
            rows = minimq.arrow.read_table("state", own.nameserver, newest=True, columns=["body", "keys"])
            stored = minimq.arrow.read_table("state", own.nameserver, columns=["offset"]).num_rows
            return stored, {row["keys"][0]: row["body"] for row in rows.to_pylist()}

        assert found()[1] == wanted
        wait_until(lambda: found()[0] < 3_000, TIMEOUT_S, what="it is compacted")
        assert found()[1] == wanted
        offsets = minimq.arrow.read_table("state", own.nameserver, newest=True, columns=["offset"])
        assert offsets.schema.names == ["offset"]
        assert offsets.num_rows == len(wanted)


@pytest.mark.fault
def test_a_read_goes_on_at_the_next_master(tmp_path: Path) -> None:
    with replicas(tmp_path, role="sync-master") as own:
        with Producer(own.nameserver, compression="none", batch_bytes=1 << 16) as producer:
            producer.send_many(Message("t", b"%d" % number + bytes(1_000)) for number in range(30_000))
        batches = minimq.arrow.read(
            "t", own.nameserver, columns=["body"], options=RangeOptions(buffer_bytes=1 << 16, max_wait_s=TIMEOUT_S)
        )
        found = [bytes(body).rstrip(b"\0") for body in next(batches)["body"].to_pylist()]
        master = wait_for_master(own)
        master.kill()
        found += [body.rstrip(b"\0") for batch in batches for body in batch["body"].to_pylist()]
        assert sorted(map(int, found)) == list(range(30_000))
        master.start()
        wait_for_master(own)


@for_each(
    ("arguments", "text"),
    [
        ({"columns": ["bodies"]}, "there is no column 'bodies': choose some of topic, "),
        ({"columns": "body"}, r"columns is 'body': give a list, such as \['body'\]"),
        ({"columns": []}, "no column is chosen"),
        ({"tags": "paid"}, r"tags is 'paid': give a list, such as \['paid'\]"),
        ({"columns": ["body", "body"]}, "column 'body' is chosen twice"),
        ({"start": 5}, "start is 5: give 'earliest', 'latest', a time such as '-24h', or offsets"),
        ({"end": "yesterday"}, "end is 'yesterday': it must be 'earliest', "),
        ({"start": {MessageQueue("other", "broker-a", 0): 1}}, "start has an offset for .* which is not a queue"),
        ({"start": {"broker-a": 1}}, "start has an offset for 'broker-a'"),
        ({"start": "2200-01-01T00:00Z"}, "start is '2200-01-01T00:00Z', which is in the future"),
        ({"start": "-1h", "end": "-2h"}, "end is before start"),
        ({"queues": []}, "queues is empty: name at least one"),
        ({"tags": []}, "tags is empty: name at least one"),
    ],
)
def test_bad_arguments_of_a_read(cluster: LocalCluster, topic: str, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        minimq.arrow.read(topic, cluster.nameserver, **arguments)


def test_what_is_not_there_cannot_be_read(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    with pytest.raises(TopicNotFound, match="topic no-such does not exist"):
        minimq.arrow.read("no-such", cluster.nameserver)
    with pytest.raises(QueueNotFound, match="see `minimq topic describe"):
        minimq.arrow.read(topic, cluster.nameserver, queues=[MessageQueue(topic, "broker-a", 99)])
    [queue, *_] = [each.queue for each in admin.describe_topic(topic).queues]
    for bound in ("start", "end"):
        with pytest.raises(OffsetOutOfRange, match=f"{bound} has the offset 9 for {queue}, which has 0 to 0: correct"):
            minimq.arrow.read(topic, cluster.nameserver, **{bound: {queue: 9}})  # type: ignore[arg-type]
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(topic, b"x")] * 9, queue=queue)
    assert minimq.arrow.read_table(topic, cluster.nameserver, start={queue: 9}).num_rows == 0
    with pytest.raises(InvalidArgument, match=f"start is 9 and end 8 for {queue}: end lies before start"):
        minimq.arrow.read(topic, cluster.nameserver, start={queue: 9}, end={queue: 8})


@for_each(
    ("rows", "text"),
    [
        ([b"x"], "rows are list: give an Arrow table or record batch, or a data frame of Polars or pandas"),
        (pa.table({"tag": ["x"]}), "there is no column 'body'"),
        (pa.table({"body": [1]}), "column 'body' is of type int64: it must be bytes or text"),
        (pa.table({"body": ["x"], "tags": ["x"]}), "column 'tags' cannot be sent: did you mean 'tag'"),
        (pa.table({"body": ["x"], "offset": [1]}), "column 'offset' is set by brokers and cannot be sent: drop it"),
        (pa.table({"body": ["x"], "value": ["x"]}), "there is a column 'body' and a column 'value'"),
        (pa.table({"body": ["x"], "keys": [[1]]}), "column 'keys' is of type list.*: it must be a list of text"),
        (pa.table({"body": ["x"], "properties": ["x"]}), "column 'properties' is of type string: it must be a map"),
        (pa.table({"body": ["x"], "broker_name": ["x"]}), "'broker_name' without 'queue_id'"),
        (pa.table({"body": ["x"], "queue_id": [-1]}), "column 'queue_id' is -1 in a row"),
        (pa.table({"body": ["x", None]}), "column 'body' is null in a row"),
        (pa.table({"body": ["x"], "tag": ["t" * 300]}), "the tag of a message has 300 characters"),
        (pa.table([["x"], ["y"]], names=["body", "body"]), "column 'body' appears twice"),
    ],
)
def test_rows_that_make_no_messages(cluster: LocalCluster, topic: str, rows: object, text: str) -> None:
    with Producer(cluster.nameserver) as producer, pytest.raises(InvalidArgument, match=text):
        producer.send_arrow(topic, rows)
    assert read_all(cluster.nameserver, topic) == []
