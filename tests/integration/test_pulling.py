"""Reading through the pull consumer, on real servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq.connection.connection import Connection
from minimq.consuming.pulls import open_pulls
from minimq.consuming.read_ahead import ReadyBatches
from minimq.local.server_process import ServerProcess
from minimq_common.errors import InvalidArgument, MinimqError, OffsetOutOfRange, Unavailable
from minimq_proto.v1 import broker_pb2
from support.waiting import wait_until

TIMEOUT_S = 30.0


@pytest.fixture
def consumer(cluster: LocalCluster, topic: str, new_name: Callable[[], str]) -> Iterator[PullConsumer]:
    """Closed ahead of the end of the topic."""
    with PullConsumer(cluster.nameserver, group=new_name()) as made:
        yield made


def queues_of(cluster: LocalCluster, topic: str) -> list[MessageQueue]:
    with Admin(cluster.nameserver) as admin:
        return admin.route(topic).write_queues()


@pytest.mark.parametrize("offset", [6, 10**12])
def test_an_offset_that_is_not_stored_says_which_are(
    cluster: LocalCluster, producer: Producer, topic: str, offset: int
) -> None:
    queue = producer.send(Message(topic, b"0")).queue
    producer.send_many([Message(topic, b"x")] * 4, queue=queue)
    with PullConsumer(cluster.nameserver, group=topic, offset_reset="error") as consumer:
        consumer.assign([queue])
        consumer.seek(queue, offset)
        with pytest.raises(OffsetOutOfRange, match=rf"offset {offset} of queue .* valid are 0 to 5"):
            consumer.poll(TIMEOUT_S)
        consumer.seek(queue, 3)
        assert consumer.poll(TIMEOUT_S)[0].queue_offset == 3


def thread_count(server: ServerProcess) -> int:
    assert server.pid is not None
    return len(list(Path(f"/proc/{server.pid}/task").iterdir()))


def test_waiting_pulls_hold_no_threads(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    broker = cluster.brokers[0]
    queue = next(queue for queue in queues_of(cluster, topic) if queue.broker_name == broker.name)
    connection = Connection([cluster.nameserver])
    stream = open_pulls(connection, broker.address)
    frames: list[broker_pb2.PullFrame] = []

    def receive(frame: broker_pb2.PullFrame | None, error: MinimqError | None) -> None:
        assert error is None
        assert frame is not None
        frames.append(frame)

    def pull(wait_ms: int) -> None:
        def request(pull_id: int) -> broker_pb2.PullRequest:
            place = broker_pb2.PullRequest(pull_id=pull_id, topic=topic, queue_id=queue.queue_id)
            place.MergeFrom(broker_pb2.PullRequest(max_messages=1, max_bytes=1, wait_ms=wait_ms))
            return place

        stream.request(request, receive)

    pull(0)
    wait_until(lambda: len(frames) == 1, TIMEOUT_S)
    before = thread_count(broker)
    for _ in range(1000):
        pull(60_000)
    pull(0)  # is answered behind the others have been taken in
    wait_until(lambda: len(frames) == 2, TIMEOUT_S)
    assert thread_count(broker) <= before + 2
    producer.send(Message(topic, b"x"), queue=queue)
    wait_until(lambda: len(frames) == 1002, TIMEOUT_S)
    assert all(len(frame.batches) == 1 for frame in frames[2:])
    connection.close()


def test_pulls_that_are_cancelled_under_load_do_not_harm_the_others(
    cluster: LocalCluster, producer: Producer, topic: str, new_name: Callable[[], str]
) -> None:
    """One queue is sought again and again, so that its pulls are cut; the other one is read to its end meanwhile."""
    disturbed, quiet = [queue for queue in queues_of(cluster, topic) if queue.broker_name == "broker-a"][:2]
    for queue in (disturbed, quiet):
        producer.send_many([Message(topic, bytes(1000))] * 20_000, queue=queue)
    with PullConsumer(cluster.nameserver, group=new_name(), prefetch_bytes=4 << 20) as consumer:
        consumer.assign([disturbed, quiet])
        seen, seeks = 0, 0
        deadline = time.monotonic() + 3 * TIMEOUT_S
        while seen < 20_000 and time.monotonic() < deadline:
            for message in consumer.poll(TIMEOUT_S, max_messages=500):
                if message.queue == quiet:
                    assert message.queue_offset == seen
                    seen += 1
            consumer.seek(disturbed, seeks % 20_000)
            seeks += 1
        assert seen == 20_000
        consumer.seek(disturbed, 19_999)
        last = disturbed, 19_999
        wait_until(lambda: last in [(m.queue, m.queue_offset) for m in consumer.poll(1.0)], TIMEOUT_S)


def test_delivered_messages_are_freed_before_the_other_queues_had_their_turns(
    cluster: LocalCluster, consumer: PullConsumer, producer: Producer, topic: str
) -> None:
    queues = queues_of(cluster, topic)
    for queue in queues:
        producer.send(Message(topic, b"x"), queue=queue)
    consumer.assign(queues)
    fetcher = consumer._reader.fetcher
    count = 0
    while count < len(queues):
        count += len(consumer.poll(TIMEOUT_S, max_messages=1))
        assert sum(bool(handed.messages) for handed in fetcher.ready if handed.is_over) <= 1
    consumer.poll(0.0)
    assert not any(handed.messages for handed in fetcher.ready)


@pytest.mark.fault
@pytest.mark.parametrize(
    "call",
    [
        lambda consumer, queue: consumer.seek(queue, 0),
        lambda consumer, queue: consumer.position(queue),
        lambda consumer, queue: consumer.pause([queue]),
        lambda consumer, queue: consumer.subscribe("t", "||"),
        lambda consumer, queue: consumer.subscribe("no spaces"),
        lambda consumer, queue: consumer.assign([MessageQueue(queue.topic, "broker-a", 99)]),
    ],
)
def test_wrong_usage_of_a_consumer_is_named(
    consumer: PullConsumer, topic: str, call: Callable[[PullConsumer, MessageQueue], object]
) -> None:
    with pytest.raises(InvalidArgument):
        call(consumer, MessageQueue(topic, "broker-a", 0))


def test_a_queue_of_a_broker_that_is_not_known_may_come(cluster: LocalCluster, topic: str) -> None:
    consumer = PullConsumer(cluster.nameserver, group="closed")
    with consumer, pytest.raises(Unavailable, match="broker-z running"):
        consumer.assign([MessageQueue(topic, "broker-z", 0)])


def test_batches_are_decoded_by_the_thread_that_polls(
    consumer: PullConsumer, producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded_by: set[int] = set()
    plain = ReadyBatches.open

    def note(handed: ReadyBatches, wanted: Any, **options: bool) -> None:
        decoded_by.add(threading.get_ident())
        plain(handed, wanted, **options)

    monkeypatch.setattr(ReadyBatches, "open", note)
    for number in range(3):
        producer.send_many([Message(topic, b"%d" % number)] * 5)
    consumer.subscribe(topic)
    read = 0
    while read < 15:
        read += len(consumer.poll(TIMEOUT_S, max_messages=4))
    assert decoded_by == {threading.get_ident()}, "the event loop has frames to receive meanwhile"
