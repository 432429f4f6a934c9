"""Streams that are started again, and ask brokers: without Spark, on real clusters."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, MinimqError, Producer
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.micro_batch_planner import MicroBatchPlanner
from pyspark_minimq.options import parse_stream_options
from pyspark_minimq.stream_planning import StreamOffset
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

Parts = dict[MessageQueue, tuple[int, int]]


class Query:
    """A query that is started again and again with one checkpoint; without Spark, whose part here is to keep that."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._checkpoint = ""

    def run(self, *, available_now: bool = False, **options: str) -> Parts:
        """Plan one micro-batch, as the first one of a run, and return what it holds."""
        parsed = parse_stream_options({"nameserver": self._nameserver, "startingOffsets": "earliest", **options})
        with closing(MicroBatchPlanner(parsed)) as planner:
            if available_now:
                planner.freeze()
            done = StreamOffset.from_json(json.loads(self._checkpoint)) if self._checkpoint else planner.initial()
            planned = planner.advance(done, parsed.limits)
        if planned is None:
            return {}
        self._checkpoint = json.dumps(planned.to_json())
        return {part.queue: (part.start, part.end) for part in planned.ranges()}

    def rejection(self, *, available_now: bool = False, **options: str) -> str:
        with pytest.raises((MinimqSparkError, MinimqError)) as caught:
            self.run(available_now=available_now, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def query(cluster: LocalCluster) -> Query:
    return Query(cluster.nameserver)


def send(producer: Producer, queue: MessageQueue, numbers: Iterable[int]) -> None:
    producer.send_many([Message(queue.topic, b"%d" % number) for number in numbers], queue=queue)


def test_a_broker_that_lost_its_disk_has_another_topic_by_the_same_name(tmp_path: Path) -> None:
    queue = MessageQueue("t", "broker-a", 0)
    with LocalCluster(brokers=1, data_dir=tmp_path) as own, Admin(own.nameserver) as admin:
        query, broker = Query(own.nameserver), own.brokers[0]
        admin.create_topic("t", queues=1)
        with Producer(own.nameserver) as producer:
            send(producer, queue, range(50))
        assert query.run(topic="t") == {queue: (0, 50)}

        broker.kill()
        shutil.rmtree(broker.data_dir)
        broker.start()
        admin.create_topic("t", queues=1)
        with Producer(own.nameserver) as producer:
            send(producer, queue, range(100))
        reason = "queue t/broker-a/0, read up to offset 50, was deleted and created again: it has 0 to 100"
        assert reason in query.rejection(topic="t")
        assert reason in query.rejection(topic="t", available_now=True)
        assert query.run(topic="t", failOnDataLoss="false") == {queue: (0, 100)}
        assert query.run(topic="t") == {}


@pytest.mark.parametrize("by_queue", [False, True])
def test_a_deleted_topic_is_got_past_by_a_query_that_is_told_to(
    query: Query, producer: Producer, admin: Admin, new_name: Callable[[], str], by_queue: bool
) -> None:
    kept, gone = queues = [MessageQueue(new_name(), "broker-a", 0) for _ in range(2)]
    options: dict[str, Any] = {"topic": f"{kept.topic},{gone.topic}"}
    if by_queue:
        options = {"assign": json.dumps({queue.topic: {"broker-a": [0]} for queue in queues})}
    for queue in queues:
        admin.create_topic(queue.topic, queues=1, brokers=["broker-a"])
        send(producer, queue, range(10))
    assert query.run(**options) == dict.fromkeys(queues, (0, 10))
    admin.delete_topic(gone.topic)
    send(producer, kept, range(3))

    for available_now in (False, True):
        rejection = query.rejection(available_now=available_now, **options)
        assert rejection.startswith(f"queue {gone}, read up to offset 10, was deleted; failOnDataLoss=false")
    for first, available_now in ((10, True), (13, False)):  # also once the checkpoint does not name it any more
        lenient = query.run(available_now=available_now, failOnDataLoss="false", **options)
        assert lenient == {kept: (first, first + 3)}
        send(producer, kept, range(3))
    admin.create_topic(gone.topic, queues=1, brokers=["broker-a"])
    send(producer, gone, range(2))
    assert query.run(failOnDataLoss="false", **options) == {kept: (16, 19), gone: (0, 2)}


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("way", ["topic", "subscribePattern", "assign"])
def test_a_subscription_that_is_narrowed_is_rejected_or_lets_go(
    query: Query, producer: Producer, admin: Admin, new_name: Callable[[], str], way: str, available_now: bool
) -> None:
    kept, left = queues = [MessageQueue(new_name(), "broker-a", 0) for _ in range(2)]

    def naming(*chosen: MessageQueue) -> dict[str, Any]:
        names = [queue.topic for queue in chosen]
        assign = json.dumps({name: {"broker-a": [0]} for name in names})
        return {way: {"topic": ",".join(names), "subscribePattern": "|".join(names), "assign": assign}[way]}

    for queue in queues:
        admin.create_topic(queue.topic, queues=1, brokers=["broker-a"])
        send(producer, queue, range(10))
    assert query.run(**naming(*queues)) == dict.fromkeys(queues, (0, 10))
    for queue in queues:
        send(producer, queue, range(3))

    rejection = query.rejection(available_now=available_now, **naming(kept))
    assert rejection.startswith(
        f"queue {left}, read up to offset 10, is in the checkpoint and not in the options any more;"
    )
    lenient = query.run(available_now=available_now, failOnDataLoss="false", **naming(kept))
    assert lenient == {kept: (10, 13)}
    send(producer, kept, range(2))
    assert query.run(available_now=available_now, **naming(kept)) == {kept: (13, 15)}  # it is told once


def test_a_stream_begins_at_a_moment(query: Query, producer: Producer, topic: str) -> None:
    queue, empty = MessageQueue(topic, "broker-a", 0), MessageQueue(topic, "broker-b", 0)
    send(producer, queue, range(5))
    send(producer, empty, range(5))
    before = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > before)
    moment = before + 1
    send(producer, queue, range(5))
    assert query.run(topic=topic, startingTimestamp=str(moment)) == {queue: (5, 10)}


def test_the_progress_of_a_group_is_where_no_query_begins(
    cluster: LocalCluster, producer: Producer, admin: Admin, topic: str
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    send(producer, queue, range(20))
    first, second = Query(cluster.nameserver), Query(cluster.nameserver)
    assert first.run(topic=topic, consumerGroup=topic) == {queue: (0, 20)}
    assert first.run(topic=topic, consumerGroup=topic) == {}
    assert admin.committed_offsets(topic)[queue] == 20
    assert second.run(topic=topic, consumerGroup=topic) == {queue: (0, 20)}
