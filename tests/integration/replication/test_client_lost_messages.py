"""An asynchronous master takes messages with it that consumers have read: they leave out nothing of the next one's."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from minimq import Message, OffsetReset, Producer, PullConsumer
from minimq.consuming.queue_finder import QueueFinder
from minimq.consuming.range_reader import RangeOptions, RangeReader
from minimq.consuming.received import ReceivedBatch
from minimq_common.errors import OffsetOutOfRange
from pyspark_minimq.columns import MESSAGE_SCHEMA
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.options import parse_read_options
from pyspark_minimq.planning import OffsetRange
from pyspark_minimq.reading import RangePartition, read
from support.client_replicas import committed, ends
from support.replicas import TIMEOUT_S, queues, replicas, wait_caught_up, wait_for_master, wait_in_sync
from support.waiting import wait_until

NEW = {b"new %d" % number for number in range(200)}


def read_until(consumer: PullConsumer, wanted: set[bytes]) -> None:
    """Return when all these have been read."""
    missing, deadline = set(wanted), time.monotonic() + TIMEOUT_S
    while missing and time.monotonic() < deadline:
        missing.difference_update(message.body for message in consumer.poll(0.1))
    assert not missing, (len(missing), sorted(missing)[:3])


@pytest.mark.fault
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "as_member", [pytest.param(True, id="member"), pytest.param(False, marks=pytest.mark.long, id="assigned")]
)
def test_what_the_new_master_has_stored_is_read_though_the_reader_was_further(tmp_path: Path, as_member: bool) -> None:
    resets: list[OffsetReset] = []
    with (
        replicas(tmp_path, role="async-master", replica_lag_s=3600.0) as cluster,
        Producer(cluster.nameserver, batch_messages=10, send_timeout_s=TIMEOUT_S) as producer,
        PullConsumer(
            cluster.nameserver, group="g", start="earliest", auto_commit=False, on_offset_reset=resets.append
        ) as consumer,
    ):
        master = wait_for_master(cluster)
        [slave] = [broker for broker in cluster.brokers if broker is not master]
        if as_member:
            consumer.subscribe("t")
        else:
            consumer.assign(queues(cluster))
        wait_in_sync(cluster, master, slave)
        for future in [producer.send_async(Message("t", b"old %d" % number)) for number in range(100)]:
            future.result(TIMEOUT_S)
        read_until(consumer, {b"old %d" % number for number in range(100)})
        wait_caught_up(cluster)

        slave.pause()
        lost = {b"lost %d" % number for number in range(100)}
        for body in sorted(lost):  # one by one, so that little of it is on its way to the slave
            producer.send(Message("t", body))
        read_until(consumer, lost)
        consumer.commit()
        master.kill()
        # They are stored before the consumer comes, and reach beyond where it is.
        sending = [producer.send_async(Message("t", body)) for body in sorted(NEW)]
        slave.resume()
        wait_for_master(cluster, master)
        for future in sending:
            future.result(TIMEOUT_S)
        read_until(consumer, NEW)
        assert resets, "nothing was lost"
        assert all(reset.is_back for reset in resets)
        consumer.commit()
        assert committed(slave, "g") == {queue.queue_id: end for queue, end in ends(cluster).items()}
        master.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_who_broadcasts_and_was_closed_meanwhile_leaves_nothing_out(tmp_path: Path) -> None:
    resets: list[OffsetReset] = []

    def new_consumer(client_id: str, start: str) -> PullConsumer:
        consumer = PullConsumer(
            cluster.nameserver,
            group="g",
            client_id=client_id,
            broadcast_dir=tmp_path / "offsets",
            start=start,
            on_offset_reset=resets.append,
        )
        consumer.subscribe("t")
        return consumer

    with (
        replicas(tmp_path, role="async-master", replica_lag_s=3600.0) as cluster,
        Producer(cluster.nameserver, batch_messages=10, send_timeout_s=TIMEOUT_S) as producer,
    ):
        master = wait_for_master(cluster)
        [slave] = [broker for broker in cluster.brokers if broker is not master]
        wait_in_sync(cluster, master, slave)
        old = {b"old %d" % number for number in range(50)}
        for body in sorted(old):
            producer.send(Message("t", body))
        wait_caught_up(cluster)
        slave.pause()
        lost = {b"lost %d" % number for number in range(60)}
        for body in sorted(lost):
            producer.send(Message("t", body))
        with new_consumer("further", "earliest") as consumer:
            read_until(consumer, old | lost)
        with new_consumer("new", "latest") as consumer:  # it begins at the end, and gets nothing
            wait_until(lambda: not consumer.poll(0.05) and len(consumer.assignment) == 2, TIMEOUT_S)
        master.kill()
        slave.resume()
        wait_for_master(cluster, master)
        for future in [producer.send_async(Message("t", body)) for body in sorted(NEW)]:
            future.result(TIMEOUT_S)

        for client_id in ("further", "new"):
            resets.clear()
            with new_consumer(client_id, "latest") as consumer:
                read_until(consumer, NEW)
            assert resets, "nothing was lost"
            assert all(reset.is_back for reset in resets)
            resets.clear()
            with new_consumer(client_id, "latest") as consumer:  # it was told once
                wait_until(lambda: not consumer.poll(0.05) and len(consumer.assignment) == 2, TIMEOUT_S)
                wait_until(consumer.at_end, TIMEOUT_S)
                assert resets == []
        master.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)


@pytest.mark.fault
@pytest.mark.timeout(120)
def test_messages_of_two_masters_are_not_mixed_in_a_range(tmp_path: Path) -> None:
    with (
        replicas(tmp_path, role="async-master", replica_lag_s=3600.0) as cluster,
        Producer(cluster.nameserver, batch_messages=10, send_timeout_s=TIMEOUT_S) as producer,
        closing(RangeReader(cluster.nameserver, RangeOptions(buffer_bytes=100))) as reader,
    ):
        master = wait_for_master(cluster)
        [slave] = [broker for broker in cluster.brokers if broker is not master]
        [queue, _] = queues(cluster)
        wait_in_sync(cluster, master, slave)
        for future in [producer.send_async(Message("t", b"old"), queue=queue) for _ in range(100)]:
            future.result(TIMEOUT_S)
        wait_caught_up(cluster)
        slave.pause()
        for _ in range(100):
            producer.send(Message("t", b"lost"), queue=queue)
        with closing(QueueFinder(cluster.nameserver)) as finder:
            found = finder.find(["t"]).queues[queue]
        assert (found.first, found.end) == (0, 200)
        planned = OffsetRange(queue, 0, 200, found.term)
        both, old = reader.read(queue, 0, 200), reader.read(queue, 0, 100)
        assert bodies([next(both)]) == bodies([next(old)]) == {b"old"}
        master.kill()
        slave.resume()
        wait_for_master(cluster, master)
        for future in [producer.send_async(Message("t", b"new"), queue=queue) for _ in range(200)]:
            future.result(TIMEOUT_S)

        first, end = reader.bounds(queue)
        assert (first, end) >= (0, 300)
        for reading in (both, reader.read(queue, 0, 200, term=found.term)):
            with pytest.raises(OffsetOutOfRange, match="a new master does not have all messages of the former one"):
                assert bodies(reading) <= {b"old", b"lost"}
        for reading in (old, reader.read(queue, 0, 100, term=found.term)):
            assert bodies(reading) == {b"old"}
        with pytest.raises(MinimqSparkError, match="a new master does not have all messages of the former one"):
            read_by_spark(cluster.nameserver, planned, "true")
        assert read_by_spark(cluster.nameserver, planned, "false") == 200
        assert b"new" in bodies(reader.read(queue, 0, 200))
        master.start()
        wait_in_sync(cluster, master, slave)
        wait_caught_up(cluster)


def bodies(batches: Iterable[ReceivedBatch]) -> set[bytes]:
    return {message.body for batch in batches for message in batch.messages(0)}


def read_by_spark(nameserver: str, planned: OffsetRange, strict: str) -> int:
    """Read what a task of Spark gets. Returns how many messages it hands over."""
    options = parse_read_options({"nameserver": nameserver, "topic": "t", "failOnDataLoss": strict})
    schema = StructType([field for field in MESSAGE_SCHEMA if field.name == "body"])
    return sum(batch.num_rows for batch in read(options, schema, RangePartition([planned])))
