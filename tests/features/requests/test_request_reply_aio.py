"""Requests and replies with asyncio."""

from __future__ import annotations

import asyncio

import pytest

from minimq import LocalCluster, Message, ReceivedMessage, Reply, aio
from minimq.features.listeners.push_consumer import Mode
from support.replying import answer_to, service

TIMEOUT_S = 30.0


@pytest.mark.parametrize("mode", ["work_queue", "queues"])
def test_a_thousand_requests_at_once_of_a_listener_that_is_a_coroutine(
    cluster: LocalCluster, topic: str, group: str, mode: Mode
) -> None:
    async def listener(messages: list[ReceivedMessage]) -> list[Reply]:
        await asyncio.sleep(0)
        return [Reply(answer_to(message.body)) for message in messages]

    async def run() -> None:
        bodies = [b"%d" % number for number in range(1_000)]
        async with aio.PushConsumer(cluster.nameserver, group=group, mode=mode, batch_size=32) as consumer:
            consumer.subscribe(topic)
            await consumer.start(listener)
            async with aio.Producer(cluster.nameserver) as producer:
                requests = [producer.request(Message(topic, body), timeout=TIMEOUT_S) for body in bodies]
                assert [reply.body for reply in await asyncio.gather(*requests)] == [*map(answer_to, bodies)]
                future = await producer.request_async(Message(topic, b"one more"), timeout=TIMEOUT_S)
                assert (await future).body == answer_to(b"one more")
                large = await producer.request(Message(topic, bytes(1 << 20)), timeout=TIMEOUT_S)
                assert len(large.body) == len(answer_to(bytes(1 << 20)))

    asyncio.run(run())


def test_a_request_that_is_cancelled_leaves_nothing_behind(cluster: LocalCluster, topic: str) -> None:
    async def run() -> None:
        async with aio.Producer(cluster.nameserver) as producer:
            requests = producer._requester.open
            for turns in range(12):  # somewhere else each time: as it finds the topic, opens the inbox, waits
                task = asyncio.create_task(producer.request(Message(topic, b"x"), timeout=60))
                for _ in range(turns):
                    await asyncio.sleep(0.002)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert not len(requests)
            with service(cluster.nameserver, topic):
                reply = await producer.request(Message(topic, b"y"), timeout=TIMEOUT_S)
                assert reply.body == answer_to(b"y")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0):
                        await producer.request(Message(topic, b"z"))

    asyncio.run(run())
