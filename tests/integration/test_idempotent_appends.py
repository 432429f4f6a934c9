"""Numbered batches that are sent again to a real broker, in raw append streams."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from minimq import LocalCluster
from minimq_proto.v1 import broker_pb2
from support.kernel_stores import numbered_batch
from support.raw_sender import RawSender
from support.reading import read_all

OK, STORED = broker_pb2.SEND_STATUS_OK, broker_pb2.SEND_STATUS_ALREADY_STORED

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


@pytest.mark.replaced_by("machine")
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
