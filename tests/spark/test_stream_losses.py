"""What a stream says that is started again, when brokers do not have any more what its checkpoint names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, MiniMQError, Producer
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.follower import Follower
from pyspark_minimq.options import parse_stream_options
from pyspark_minimq.stream_planning import StreamOffset

pytestmark = [pytest.mark.spark, pytest.mark.timeout(200)]

Parts = dict[MessageQueue, tuple[int, int]]


class Query:
    """A query that is started again and again with one checkpoint; without Spark, whose part here is to keep that."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._checkpoint = ""

    def run(self, *, available_now: bool = False, **options: str) -> Parts:
        """Plan one micro-batch, as the first one of a run, and return what it holds."""
        parsed = parse_stream_options({"nameserver": self._nameserver, "startingOffsets": "earliest", **options})
        with closing(Follower(parsed)) as follower:
            if available_now:
                follower.freeze()
            done = StreamOffset.from_json(json.loads(self._checkpoint)) if self._checkpoint else follower.initial()
            planned = follower.advance(done, parsed.limits)
        if planned is None:
            return {}
        self._checkpoint = json.dumps(planned.to_json())
        return {MessageQueue(*part.queue): (part.start, part.end) for part in planned.ranges()}

    def refusal(self, *, available_now: bool = False, **options: str) -> str:
        with pytest.raises((MinimqSparkError, MiniMQError)) as caught:
            self.run(available_now=available_now, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def query(cluster: LocalCluster) -> Query:
    return Query(cluster.nameserver)


@pytest.fixture
def producer(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer(cluster.nameserver) as made:
        yield made


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
        reason = "queue t/broker-a/0, read up to offset 50, was deleted and made anew: it has 0 to 100"
        assert reason in query.refusal(topic="t")
        assert reason in query.refusal(topic="t", available_now=True)
        assert query.run(topic="t", failOnDataLoss="false") == {queue: (0, 100)}
        assert query.run(topic="t") == {}
