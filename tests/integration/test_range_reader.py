"""`RangeReader` on real servers: exactly the range, also when connections break under it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from minimq import Admin, Cluster, Message, MessageQueue, Producer
from minimq.consuming.queue_finder import QueueFinder
from minimq.consuming.range_reader import RangeOptions, RangeReader
from minimq.consuming.received import ReceivedBatch
from minimq.local.local_cluster import LocalCluster
from minimq_common.errors import Closed, DeadlineExceeded, OffsetOutOfRange, TopicRecreated
from support.waiting import wait_until

BATCH = 100


@pytest.fixture
def reader(cluster: LocalCluster) -> Iterator[RangeReader]:
    made = RangeReader(cluster.nameserver)
    yield made
    made.close()


def fill(nameserver: str, queue: MessageQueue, count: int, body_bytes: int = 10) -> None:
    """Send numbered messages in batches of 100: what is sent while something is under way would be put together."""
    messages = [Message(queue.topic, (b"%d" % number).rjust(body_bytes)) for number in range(count)]
    with Producer(nameserver) as producer:
        for first in range(0, count, BATCH):
            producer.send_many(messages[first : first + BATCH], queue=queue)


def numbers(batches: Iterator[ReceivedBatch] | list[ReceivedBatch]) -> list[int]:
    return [int(body) for batch in batches for body in batch.records.bodies()]


def test_the_batches_that_hold_a_range(cluster: LocalCluster, reader: RangeReader, topic: str) -> None:
    queue = MessageQueue(topic, "broker-b", 2)
    fill(cluster.nameserver, queue, 1000)
    assert numbers(reader.read(queue, 0, 1000)) == list(range(1000))
    assert numbers(reader.read(queue, 250, 350)) == list(range(200, 400))
    assert numbers(reader.read(queue, 300, 301)) == list(range(300, 400))
    assert numbers(reader.read(queue, 500, 500)) == []
    assert reader.bounds(queue) == (0, 1000)


def test_what_is_not_stored_is_an_error_that_says_what_is(
    cluster: LocalCluster, reader: RangeReader, topic: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    with pytest.raises(OffsetOutOfRange, match=f"offsets 5 to 9 of queue {queue} cannot be read: the queue is empty"):
        list(reader.read(queue, 5, 10))
    fill(cluster.nameserver, queue, 10)
    with pytest.raises(OffsetOutOfRange, match=f"offsets 10 to 19 of queue {queue} cannot be read: it holds 0 to 9"):
        list(reader.read(queue, 0, 20))
    with pytest.raises(OffsetOutOfRange, match=f"offset 30 of queue {queue} cannot be read: it holds 0 to 9"):
        list(reader.read(queue, 30, 31))


def test_no_more_is_fetched_than_the_buffer_holds() -> None:
    with LocalCluster(brokers=1) as own, Admin(own.nameserver) as admin:
        admin.create_topic("t", queues=1)
        queue = MessageQueue("t", "broker-a", 0)
        fill(own.nameserver, queue, 20_000, body_bytes=1000)
        reader = RangeReader(own.nameserver, RangeOptions(buffer_bytes=1 << 20))
        batches = reader.read(queue, 0, 20_000)

        def delivered() -> int:
            [status] = admin.broker_status()
            assert status.report is not None
            return status.report.messages_out

        read = numbers([next(batches)])
        wait_until(lambda: delivered() > 500)
        # One buffer, refilled when half of it was taken, and a batch over.
        assert delivered() <= 1.5 * (1 << 20) / 1000 + 2 * BATCH
        read += numbers(batches)
        assert read == list(range(20_000))
        reader.close()


def test_closing_the_reader_ends_its_readings_also_on_a_shared_cluster(cluster: LocalCluster, topic: str) -> None:
    queue = MessageQueue(topic, "broker-a", 1)
    fill(cluster.nameserver, queue, 5000, body_bytes=1000)
    with Cluster(cluster.nameserver) as shared:
        reader = RangeReader(shared, RangeOptions(buffer_bytes=1 << 20))
        batches = reader.read(queue, 0, 5000)
        next(batches)
        assert streams(reader)
        reader.close()
        wait_until(lambda: not streams(reader), timeout=30)
        with pytest.raises(Closed):
            list(batches)
        with pytest.raises(Closed):
            list(reader.read(queue, 0, 5000))


def streams(reader: RangeReader) -> list[str]:
    """Return the streams that live on the event loop of a reader."""
    tasks = asyncio.all_tasks(reader._client.connection._loop)
    return [name for task in tasks if (name := getattr(task.get_coro(), "__qualname__", "")) == "Stream._run"]


@pytest.mark.fault
@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_reading_goes_on_where_it_was_when_the_broker_is_back(fault: str) -> None:
    with LocalCluster(brokers=1) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("t", queues=1)
        queue = MessageQueue("t", "broker-a", 0)
        fill(own.nameserver, queue, 20_000, body_bytes=1000)
        reader = RangeReader(own.nameserver, RangeOptions(buffer_bytes=1 << 20))
        batches = reader.read(queue, 0, 20_000)
        read = numbers([next(batches)])
        getattr(own.brokers[0], fault)()
        own.brokers[0].start()
        read += numbers(batches)
        assert read == list(range(20_000))
        reader.close()


@pytest.mark.fault
def test_a_silent_broker_is_asked_anew_and_given_up_in_the_end() -> None:
    with LocalCluster(brokers=1) as own:
        with Admin(own.nameserver) as admin:
            admin.create_topic("t", queues=1)
        queue = MessageQueue("t", "broker-a", 0)
        fill(own.nameserver, queue, 20_000, body_bytes=1000)
        reader = RangeReader(own.nameserver, RangeOptions(1 << 20, answer_timeout_s=1.0, max_wait_s=3.0))
        batches = reader.read(queue, 0, 20_000)
        read = numbers([next(batches)])
        own.brokers[0].pause()
        with pytest.raises(
            DeadlineExceeded, match=f"queue {queue} cannot be read from offset .* no answer from its broker"
        ):
            read += numbers(batches)
        own.brokers[0].resume()
        reader.close()
        with closing(RangeReader(own.nameserver)) as patient:
            assert numbers(patient.read(queue, 0, 20_000)) == list(range(20_000))


def test_a_range_of_a_deleted_topic_is_not_read_from_the_next_of_its_name(
    cluster: LocalCluster, reader: RangeReader, admin: Admin, topic: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    slowly = RangeReader(cluster.nameserver, RangeOptions(buffer_bytes=1))  # batch by batch
    with closing(QueueFinder(cluster.nameserver)) as finder, closing(slowly):
        fill(cluster.nameserver, queue, 5 * BATCH)
        planned = finder.find([topic]).queues[queue].topic_id
        admin.update_topic(topic, read_queues=8, write_queues=8)
        assert numbers(reader.read(queue, 0, BATCH, topic_id=planned)) == list(range(BATCH))
        under_way = slowly.read(queue, 0, 5 * BATCH, topic_id=planned)
        assert next(under_way).base_offset == 0

        admin.delete_topic(topic)
        admin.create_topic(topic, queues=1)  # the range is also of more queues than there are now
        fill(cluster.nameserver, queue, 6 * BATCH)
        last = MessageQueue(topic, "broker-a", 3)
        for read in (under_way, reader.read(queue, 0, 1, topic_id=planned), reader.read(last, 0, 1, topic_id=planned)):
            with pytest.raises(TopicRecreated, match=f"topic {topic} was deleted and created again since"):
                list(read)
        with pytest.raises(TopicRecreated):
            reader.bounds(queue, planned)
        assert len(numbers(reader.read(queue, 0, 6 * BATCH))) == 6 * BATCH
