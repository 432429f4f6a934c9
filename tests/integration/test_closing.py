"""Closing clients from several threads, and after their `Cluster`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import pytest

from minimq import Cluster, ConsumeResult, LocalCluster, Message, MessageQueue, Producer, PushConsumer, aio

TIMEOUT_S = 40.0
#: Enough for a call that wrongly returns at once; one that waits is not measured by it.
_AT_ONCE_S = 0.3


@pytest.mark.parametrize("mode", ["queues", "work_queue"])
def test_a_second_close_waits_for_the_first(
    cluster: LocalCluster, producer: Producer, topic: str, group: str, mode: Literal["queues", "work_queue"]
) -> None:
    producer.send(Message(topic, b"x"))
    begun, go_on = threading.Event(), threading.Event()
    events: list[str] = []

    def listen(_: object) -> ConsumeResult:
        begun.set()
        go_on.wait(TIMEOUT_S)
        events.append("listener")
        return ConsumeResult.SUCCESS

    def close() -> None:
        consumer.close(TIMEOUT_S)
        events.append("closed")

    consumer = PushConsumer(cluster.nameserver, group=group, mode=mode)
    consumer.subscribe(topic)
    consumer.start(listen)
    assert begun.wait(TIMEOUT_S)
    closers = [threading.Thread(target=close) for _ in range(3)]
    for closer in closers:
        closer.start()
    closers[-1].join(_AT_ONCE_S)
    go_on.set()
    for closer in closers:
        closer.join(TIMEOUT_S)
    consumer.close()
    assert events == ["listener", "closed", "closed", "closed"]


async def _polled(consumer: aio.PullConsumer, topic: str) -> None:
    consumer.subscribe(topic)
    while not await consumer.poll(1):
        pass


async def _assigned(consumer: aio.PullConsumer, topic: str) -> None:
    await consumer.assign([MessageQueue(topic, "broker-a", 0)])
    await consumer.poll(0.1)


@pytest.mark.parametrize("read", [_polled, _assigned])
def test_a_pull_consumer_may_be_closed_after_its_cluster(
    cluster: LocalCluster,
    producer: Producer,
    topic: str,
    group: str,
    read: Callable[[aio.PullConsumer, str], Coroutine[Any, Any, None]],
) -> None:
    producer.send(Message(topic, b"x"))

    async def run() -> None:
        for _ in range(5):  # the thread that closes has the identity of one that has ended, or it has not
            shared = Cluster(cluster.nameserver)
            consumer = aio.PullConsumer(shared, group=group if read is _polled else None, auto_commit=False)
            await read(consumer, topic)
            await shared.aclose()
            await consumer.close()
            await consumer.close()

    asyncio.run(run())
