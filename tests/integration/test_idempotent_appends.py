"""Numbered batches that are sent again to a real broker, in raw append streams."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from minimq_proto.v1 import broker_pb2
from support.raw_sender import RawSender
from support.reading import check_brokers, read_all
from support.stores import numbered_batch

OK, NOT_SYNCED, STORED = (
    broker_pb2.SEND_STATUS_OK,
    broker_pb2.SEND_STATUS_NOT_SYNCED,
    broker_pb2.SEND_STATUS_ALREADY_STORED,
)

_producers = count(0xABC0001)


@pytest.fixture
def producer_id() -> int:
    """One that no other test has."""
    return next(_producers)


@pytest.fixture
def sender(cluster: LocalCluster) -> Iterator[RawSender]:
    with RawSender(cluster.brokers[0].address) as made:
        yield made


def places(results: list[broker_pb2.AppendResult]) -> list[tuple[int, int, int]]:
    """Return queue, offset and store time of each answer."""
    assert not any(result.HasField("failure") for result in results), results
    return [(result.queue_id, result.base_offset, result.store_timestamp_ms) for result in results]


def test_a_repeat_is_answered_with_the_place_of_the_first(
    cluster: LocalCluster, sender: RawSender, topic: str, producer_id: int
) -> None:
    data = numbered_batch(producer_id, 3, b"a", b"b")
    [first] = sender.send(topic, [(2, data)])
    repeats = sender.send(topic, [(2, data), (0, data)])
    with RawSender(cluster.brokers[0].address) as other:
        repeats += other.send(topic, [(1, data)])

    assert (first.queue_id, first.base_offset, first.status) == (2, 0, OK)
    assert [result.status for result in repeats] == [STORED] * 3
    assert set(places(repeats)) == set(places([first]))
    assert [message.body for message in read_all(cluster.nameserver, topic)] == [b"a", b"b"]


def test_copies_under_way_at_the_same_time_are_stored_once(cluster: LocalCluster, topic: str, producer_id: int) -> None:
    """Four connections send the same batches at once, each to another queue."""
    batches = [numbered_batch(producer_id, sequence, b"%d" % sequence) for sequence in range(500)]

    def send_all(queue_id: int) -> list[broker_pb2.AppendResult]:
        with RawSender(cluster.brokers[0].address) as sender:
            return sender.send(topic, [(queue_id, data) for data in batches for _ in range(2)])

    with ThreadPoolExecutor(4) as threads:
        every = list(threads.map(send_all, range(4)))
    stored = {
        (message.queue.queue_id, message.queue_offset): message.body for message in read_all(cluster.nameserver, topic)
    }

    assert sorted(map(int, stored.values())) == list(range(500))
    for answers in zip(*every, strict=True):
        assert len(set(places(list(answers)))) == 1
    for index, result in enumerate(every[0]):
        assert stored[result.queue_id, result.base_offset] == b"%d" % (index // 2)
    assert sum(result.status == OK for answers in every for result in answers) == 500


def test_without_a_number_each_copy_is_stored(cluster: LocalCluster, sender: RawSender, topic: str) -> None:
    results = sender.send(topic, [(0, numbered_batch(0, 0, b"x"))] * 3)
    assert [(result.base_offset, result.status) for result in results] == [(0, OK), (1, OK), (2, OK)]


def test_what_is_settled_is_refused(cluster: LocalCluster, sender: RawSender, topic: str, producer_id: int) -> None:
    def batch_of(sequence: int, unsettled: int) -> tuple[int, bytes]:
        return 0, numbered_batch(producer_id, sequence, b"%d" % sequence, unsettled=unsettled)

    sender.send(topic, [batch_of(1, 0), batch_of(9, 2)])
    stale, new, repeated = sender.send(topic, [batch_of(1, 0), batch_of(8, 0), batch_of(9, 0)])

    assert stale.failure.code == "STALE_SEQUENCE"
    assert f"batch 1 of producer {producer_id:016x} comes too late" in stale.failure.message
    assert (new.status, repeated.status) == (OK, STORED)
    assert [message.body for message in read_all(cluster.nameserver, topic)] == [b"1", b"9", b"8"]


def test_a_deleted_topic_takes_its_batches_along(
    admin: Admin, cluster: LocalCluster, sender: RawSender, topic: str, producer_id: int
) -> None:
    data = numbered_batch(producer_id, 3, b"x")
    sender.send(topic, [(2, data)])
    admin.delete_topic(topic)
    [gone] = sender.send(topic, [(2, data)])
    admin.create_topic(topic, queues=4)
    [again] = sender.send(topic, [(1, data)])

    assert gone.failure.code == "TOPIC_NOT_FOUND"
    assert (again.status, again.queue_id, again.base_offset) == (OK, 1, 0)
    assert [message.body for message in read_all(cluster.nameserver, topic)] == [b"x"]


def test_with_asynchronous_flush_the_status_says_so(tmp_path: Path, producer_id: int) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path, broker_options={"flush": "async"}) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=2)
        [broker] = cluster.brokers
        with RawSender(broker.address) as sender:
            data = numbered_batch(producer_id, 3, b"x")
            [first] = sender.send("t", [(0, data)])
            [repeat] = sender.send("t", [(1, data)])
        assert (first.status, repeat.status) == (NOT_SYNCED, STORED)
        assert places([first]) == places([repeat])
        broker.restart()
        with RawSender(broker.address) as sender:
            [later] = sender.send("t", [(1, data)])
        assert (later.status, places([later])) == (STORED, places([first]))
    check_brokers(cluster)
