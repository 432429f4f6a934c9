"""Several queues with messages take turns of `max_messages`, whatever the size of their stored batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest

from minimq import ConsumeResult, LocalCluster, Message, MessageQueue, Producer, PullConsumer, PushConsumer, aio
from minimq.consuming.consumer import Consumer
from support.waiting import wait_until

TIMEOUT_S = 40.0
#: A stored batch has as many messages as fit.
BATCH = 4096


@pytest.fixture
def queues(cluster: LocalCluster, producer: Producer, topic: str) -> Sequence[MessageQueue]:
    """Two queues, each with one stored batch."""
    first, second = producer.send(Message(topic, b"x")).queue, producer.send(Message(topic, b"x")).queue
    for queue in (first, second):
        producer.send_many([Message(topic, b"x")] * BATCH, queue=queue)
    return first, second


def wait_until_fetched(consumer: Consumer, queues: Sequence[MessageQueue]) -> None:
    """Wait until every queue has messages in memory."""
    fetcher = consumer.fetcher
    wait_until(lambda: all((reader := fetcher.reader(each)) and reader._ahead.messages for each in queues), TIMEOUT_S)


def assert_in_turn(taken: Sequence[MessageQueue]) -> None:
    # The first turns are of lone messages, and may begin before the other queue has its own.
    assert all(earlier != later for earlier, later in pairwise(taken[4:]))


def test_a_for_loop_does_not_take_a_whole_batch_in_one_turn(
    cluster: LocalCluster, queues: Sequence[MessageQueue]
) -> None:
    with PullConsumer(cluster.nameserver) as consumer:
        consumer.assign(queues)
        wait_until_fetched(consumer._reader, queues)
        taken = [message.queue for message, _ in zip(consumer, range(1000), strict=False)]
    assert all(taken.count(queue) > 300 for queue in queues)


def test_an_asyncio_poll_takes_one_turn(cluster: LocalCluster, queues: Sequence[MessageQueue]) -> None:
    async def main() -> list[MessageQueue]:
        async with aio.PullConsumer(cluster.nameserver) as consumer:
            await consumer.assign(queues)
            await asyncio.to_thread(wait_until_fetched, consumer._reader, queues)
            return [(await consumer.poll(TIMEOUT_S, max_messages=10))[0].queue for _ in range(60)]

    assert_in_turn(asyncio.run(main()))


def test_a_call_of_a_listener_is_one_turn(
    cluster: LocalCluster, group: str, topic: str, queues: Sequence[MessageQueue]
) -> None:
    may_begin, done = threading.Event(), threading.Event()
    taken: list[MessageQueue] = []

    def listen(messages: Sequence[object]) -> ConsumeResult:
        may_begin.wait(TIMEOUT_S)
        taken.append(messages[0].queue)  # type: ignore[attr-defined]
        if len(taken) == 60:
            done.set()
        return ConsumeResult.SUCCESS

    with PushConsumer(cluster.nameserver, group=group, threads=1, batch_size=10) as consumer:
        consumer.subscribe(topic)
        consumer.start(listen)
        wait_until_fetched(consumer._reader, queues)  # type: ignore[arg-type]
        may_begin.set()
        assert done.wait(TIMEOUT_S)
    assert_in_turn(taken)
