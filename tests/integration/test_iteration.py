"""Loops over a consumer: what was not asked for, or not gone beyond, is never committed, and comes again."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer
from minimq.aio import PullConsumer as AsyncPullConsumer
from support.waiting import wait_until

TIMEOUT_S = 40.0
COUNT = 100


@pytest.fixture
def queue(cluster: LocalCluster, admin: Admin, new_name: Callable[[], str]) -> Iterator[MessageQueue]:
    """The only queue of a topic, with messages that were fetched together and in several batches."""
    found = MessageQueue(new_name(), "broker-a", 0)
    admin.create_topic(found.topic, queues=1, brokers=["broker-a"])
    with Producer(cluster.nameserver) as producer:
        for first in range(0, COUNT, 20):
            producer.send_many([Message(found.topic, b"%d" % number) for number in range(first, first + 20)])
    yield found
    admin.delete_topic(found.topic)


def make(cluster: LocalCluster, queue: MessageQueue, group: str, **options: object) -> PullConsumer:
    consumer = PullConsumer(cluster.nameserver, group=group, **options)  # type: ignore[arg-type]
    consumer.subscribe(queue.topic)
    return consumer


def take(consumer: PullConsumer, count: int) -> list[int]:
    """Loop as users do who do not wait for the garbage collector: the loop is left open."""
    too_late = threading.Timer(TIMEOUT_S, consumer.close)
    too_late.start()
    try:
        return [message.queue_offset for message in itertools.islice(iter(consumer), count)]
    finally:
        too_late.cancel()


def test_a_loop_that_is_left_commits_what_it_went_beyond(
    cluster: LocalCluster, admin: Admin, queue: MessageQueue, group: str
) -> None:
    with make(cluster, queue, group) as consumer:
        for at, message in enumerate(consumer):  # noqa: B007 - a look at the last one
            if at == 9:
                break
        assert message.queue_offset == 9
    assert admin.committed_offsets(group, queue.topic)[queue] == 9
    with make(cluster, queue, group) as consumer:
        assert take(consumer, COUNT - 9) == list(range(9, COUNT))


def test_a_commit_in_a_loop_does_not_count_the_message_in_flight(
    cluster: LocalCluster, admin: Admin, queue: MessageQueue, group: str
) -> None:
    with make(cluster, queue, group, auto_commit=False) as consumer:
        for message in consumer:
            if message.queue_offset == 25:
                assert consumer.position(queue) == 26
                assert not consumer.at_end()
                consumer.commit()
                assert admin.committed_offsets(group, queue.topic)[queue] == 25
            if message.queue_offset == COUNT - 1:
                break
        assert consumer.at_end()
        assert consumer.poll(0.0) == []  # which goes beyond the last one
        consumer.commit()
    assert admin.committed_offsets(group, queue.topic)[queue] == COUNT


def test_who_leaves_a_loop_may_go_on_with_another_or_with_polls(
    cluster: LocalCluster, admin: Admin, queue: MessageQueue, group: str
) -> None:
    with make(cluster, queue, group) as consumer:
        left_open = iter(consumer)
        assert [next(left_open).queue_offset for _ in range(5)] == [0, 1, 2, 3, 4]
        assert take(consumer, 30) == list(range(5, 35))
        assert [message.queue_offset for message in consumer.poll(TIMEOUT_S, max_messages=3)] == [35, 36, 37]
        assert next(left_open).queue_offset == 38
        rest = take(consumer, COUNT - 39)
        assert rest == list(range(39, COUNT))
    assert admin.committed_offsets(group, queue.topic)[queue] == COUNT - 1


def test_a_queue_is_handed_over_where_the_loop_is(cluster: LocalCluster, queue: MessageQueue, group: str) -> None:
    """The queue leaves in the poll that follows on the loop; its next owner begins with what nobody has seen."""
    with make(cluster, queue, group, client_id=f"b-{group}") as consumer:
        assert take(consumer, 10) == list(range(10))
        with make(cluster, queue, group, client_id=f"a-{group}") as other:

            def found() -> list[int]:
                assert not consumer.poll(0.0) or consumer.assignment == [queue]
                return [message.queue_offset for message in other.poll(0.05)]

            other.poll(0.0)
            wait_until(consumer._reader.fetcher.leaving, TIMEOUT_S)
            assert wait_until(found, TIMEOUT_S)[0] == 10


# ---- asyncio ------------------------------------------------------------------------------------


def make_async(cluster: LocalCluster, queue: MessageQueue, group: str) -> AsyncPullConsumer:
    consumer = AsyncPullConsumer(cluster.nameserver, group=group)
    consumer.subscribe(queue.topic)
    return consumer


def test_an_async_loop_that_is_left_commits_what_it_went_beyond(
    cluster: LocalCluster, admin: Admin, queue: MessageQueue, group: str
) -> None:
    async def run() -> None:
        async with make_async(cluster, queue, group) as consumer:
            async for message in consumer:
                if message.queue_offset == 9:
                    break
            assert [message.queue_offset for message in await consumer.poll(TIMEOUT_S, 2)] == [10, 11]
            async for message in consumer:
                if message.queue_offset == 20:
                    break

    asyncio.run(run())
    assert admin.committed_offsets(group, queue.topic)[queue] == 20


def test_the_message_that_a_cancelled_loop_was_at_is_not_done(
    cluster: LocalCluster, admin: Admin, queue: MessageQueue, group: str
) -> None:
    async def run() -> None:
        reached = asyncio.Event()

        async def work(consumer: AsyncPullConsumer) -> None:
            async for message in consumer:
                if message.queue_offset == 30:
                    reached.set()
                    await asyncio.sleep(TIMEOUT_S)

        async with make_async(cluster, queue, group) as consumer:
            working = asyncio.create_task(work(consumer))
            await asyncio.wait_for(reached.wait(), TIMEOUT_S)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working

    asyncio.run(run())
    assert admin.committed_offsets(group, queue.topic)[queue] == 30


def test_a_program_ends_though_a_poll_is_open(cluster: LocalCluster, queue: MessageQueue, group: str) -> None:
    consumers: list[AsyncPullConsumer] = []

    async def run() -> None:
        consumers.append(make_async(cluster, queue, group))
        while len(await consumers[0].poll(0.5)) != 0:
            pass
        asyncio.create_task(consumers[0].poll(10 * TIMEOUT_S))  # noqa: RUF006 - forgotten, as users do
        await asyncio.sleep(0.05)

    asyncio.run(run())
    began = time.monotonic()
    asyncio.run(consumers[0].close())
    assert time.monotonic() < began + TIMEOUT_S
