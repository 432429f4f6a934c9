"""The advice to use the option `tag`, with messages on real brokers and without a Spark session."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pyspark.sql.types import StructType

from minimq import LocalCluster, Message, MessageQueue, Producer
from pyspark_minimq.columns import MESSAGE_SCHEMA
from pyspark_minimq.options import parse_read_options, parse_stream_options
from pyspark_minimq.readers import MinimqBatchReader, MinimqStreamReader

ADVICE = "reading 40 messages with different tags, since the option tag is not set"


def send(cluster: LocalCluster, topic: str, tags: Iterable[str | None]) -> None:
    """Send forty messages to one queue, a batch for each tag."""
    tags = list(tags)
    with Producer(cluster.nameserver) as producer:
        for tag in tags:
            messages = [Message(topic, b"x", tag=tag) for _ in range(40 // len(tags))]
            producer.send_many(messages, queue=MessageQueue(topic, "broker-a", 0))


def advice(
    cluster: LocalCluster,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    schema: StructType = MESSAGE_SCHEMA,
    **more: str,
) -> str:
    """Return what is logged when a batch query is planned."""
    caplog.clear()
    options = {"nameserver": cluster.nameserver, "topic": topic, "maxRecordsPerPartition": "39", **more}
    MinimqBatchReader(parse_read_options(options), schema).partitions()
    return caplog.text


@pytest.mark.parametrize("tags", [["paid", "refunded"], ["paid", None]])
def test_a_large_read_of_different_tags_is_advised_to_choose(
    cluster: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture, tags: list[str | None]
) -> None:
    send(cluster, topic, tags)
    assert ADVICE in advice(cluster, topic, caplog)


def test_nothing_is_said_where_it_would_spare_little_or_is_not_known_to_help(
    cluster: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster, topic, ["paid", "refunded"])
    body = StructType([field for field in MESSAGE_SCHEMA if field.name == "body"])
    assert advice(cluster, topic, caplog, tag="paid") == ""
    assert advice(cluster, topic, caplog, schema=body) == ""
    assert advice(cluster, topic, caplog, maxRecordsPerPartition="40") == ""


def test_nothing_is_said_of_messages_with_one_tag(
    cluster: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster, topic, ["paid", "paid"])
    assert advice(cluster, topic, caplog) == ""


def test_a_stream_is_advised_once(cluster: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    send(cluster, topic, ["paid", "refunded"])
    options = {"nameserver": cluster.nameserver, "topic": topic, "maxRecordsPerPartition": "39"}
    reader = MinimqStreamReader(parse_stream_options({**options, "startingOffsets": "earliest"}), MESSAGE_SCHEMA)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.partitions(start, end)
    assert caplog.text.count(ADVICE) == 1
    reader.partitions(start, end)
    assert caplog.text.count(ADVICE) == 1
    reader.stop()
