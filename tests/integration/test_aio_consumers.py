"""The consumers for asyncio, with real servers."""

from __future__ import annotations

import asyncio
import contextvars
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest

from minimq import Admin, ConsumeResult, LocalCluster, Message, ReceivedMessage
from minimq import Producer as PlainProducer
from minimq.aio import Cluster, PullConsumer, PushConsumer
from minimq_common.errors import Closed, InvalidArgument
from support.chance import SEED

TIMEOUT_S = 30.0


T = TypeVar("T")

CANCELLATIONS = 400

INTERRUPTED = """
import asyncio, sys
from minimq.aio import Cluster, PullConsumer

async def main() -> None:
    async with PullConsumer(sys.argv[1], group=sys.argv[2]) as consumer:
        consumer.subscribe(sys.argv[2])
        count = 0
        while True:
            count += len(await consumer.poll(60.0))
            if count == 10:
                asyncio.get_running_loop().call_later(0.1, lambda: print("all is read", flush=True))

asyncio.run(main())
"""


def fill(cluster: LocalCluster, topic: str, count: int, *, first: int = 0) -> None:
    with PlainProducer(cluster.nameserver) as producer:
        producer.send_many(Message(topic, b"%d" % number) for number in range(first, first + count))


async def read(consumer: PullConsumer, count: int) -> list[bytes]:
    """Poll until there are so many messages."""
    bodies: list[bytes] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.poll(0.5)]
    return bodies


def test_cancelled_polls_and_commits_lose_nothing(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    """Each message is returned by a poll that was not cancelled, and in the end all are committed."""
    chance = random.Random(SEED)
    found: Counter[int] = Counter()
    cancelled = 0

    async def cancel_somewhere(call: Coroutine[Any, Any, T]) -> T | None:
        nonlocal cancelled
        task = asyncio.create_task(call)
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(chance.choice((0, 0, 0.0005)))
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            cancelled += 1
            return None

    async def run() -> None:
        consumer = PullConsumer(cluster.nameserver, group=topic, commit_interval_s=0.005)
        consumer.subscribe(topic)
        sent, sending = 0, None
        with PlainProducer(cluster.nameserver) as producer:
            async with consumer, asyncio.timeout(100):
                while cancelled < CANCELLATIONS or len(found) < sent:
                    if len(found) == sent:
                        part = [Message(topic, b"%d" % number) for number in range(sent, sent + 30)]
                        sent += 30
                        sending = asyncio.create_task(asyncio.to_thread(producer.send_many, part))
                    messages = await cancel_somewhere(consumer.poll(0.001, max_messages=chance.randrange(1, 5)))
                    found.update(int(message.body) for message in messages or ())
                    if chance.random() < 0.05:
                        await cancel_somewhere(consumer.commit())
        assert sending is not None
        assert sending.done()
        assert set(found) == set(range(sent))
        assert sum(offset or 0 for offset in admin.committed_offsets(topic, topic).values()) == sent

    asyncio.run(run())


def test_consumers_that_share_a_cluster_have_no_threads_of_their_own(
    cluster: LocalCluster, admin: Admin, topic: str, new_name: Callable[[], str]
) -> None:
    fill(cluster, topic, 8)
    queues = [each.queue for each in admin.describe_topic(topic).queues]
    before = threading.active_count()

    async def run() -> None:
        async with Cluster(cluster.nameserver) as shared, AsyncExitStack() as stack:
            for _ in range(3):
                consumer = await stack.enter_async_context(PullConsumer(shared))
                await consumer.assign(queues)
                await read(consumer, 8)
                member = await stack.enter_async_context(PullConsumer(shared, group=new_name()))
                member.subscribe(topic)
                await read(member, 8)
            assert threading.active_count() == before + 1  # that of the cluster

    asyncio.run(run())
    assert threading.active_count() == before


def test_close_ends_a_poll_and_leaves_no_thread_and_no_task(cluster: LocalCluster, topic: str) -> None:
    before = set(threading.enumerate())

    async def run() -> None:
        consumer = PullConsumer(cluster.nameserver, group=topic)
        consumer.subscribe(topic)
        polling = asyncio.create_task(consumer.poll(TIMEOUT_S))
        await asyncio.sleep(0.3)
        assert not polling.done()
        await consumer.close()
        with pytest.raises(Closed):
            await polling
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert set(threading.enumerate()) <= before

    asyncio.run(run())


def test_ctrl_c_in_a_poll_commits_and_says_nothing_but_that(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    fill(cluster, topic, 10)
    arguments = [sys.executable, "-X", "dev", "-c", INTERRUPTED, cluster.nameserver, topic]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        said = program.stdout.readline()
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=TIMEOUT_S)
    assert said == "all is read\n", errors
    assert sum(offset or 0 for offset in admin.committed_offsets(topic, topic).values()) == 10
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert not re.search("warning|never|destroyed|exception ignored", errors, re.IGNORECASE), errors


def test_a_listener_is_awaited_on_the_loop(cluster: LocalCluster, topic: str) -> None:
    fill(cluster, topic, 500)
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="")

    async def run() -> None:
        trace.set("of the caller of start")
        found: Counter[int] = Counter()
        under_way = most = 0
        all_found = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
            nonlocal under_way, most
            assert asyncio.get_running_loop() is loop
            assert trace.get() == "of the caller of start"
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1
            found.update(int(message.body) for message in messages)
            if len(found) == 500:
                all_found.set()
            return ConsumeResult.SUCCESS

        async with PushConsumer(cluster.nameserver, group=topic, threads=4, batch_size=10) as consumer:
            consumer.subscribe(topic)
            await consumer.start(listen)
            await asyncio.wait_for(all_found.wait(), TIMEOUT_S)
        assert found == Counter(range(500))
        assert 1 < most <= 4

    asyncio.run(run())


def test_a_thousand_listeners_are_awaited_at_once_without_a_thread_for_each(cluster: LocalCluster, topic: str) -> None:
    fill(cluster, topic, 2_000)

    async def run() -> None:
        under_way = most = calls = 0
        all_at_once, all_found = asyncio.Event(), asyncio.Event()
        threads = 0

        async def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
            nonlocal under_way, most, calls, threads
            under_way += 1
            most = max(most, under_way)
            if under_way == 1_000:
                threads = threading.active_count()
                all_at_once.set()
            await all_at_once.wait()
            under_way -= 1
            calls += 1
            if calls == 2_000:
                all_found.set()
            return ConsumeResult.SUCCESS

        async with PushConsumer(cluster.nameserver, group=topic, threads=1_000, batch_size=1) as consumer:
            consumer.subscribe(topic)
            await consumer.start(listen)
            await asyncio.wait_for(all_found.wait(), TIMEOUT_S)
            with pytest.raises(InvalidArgument, match="start it once"):
                await consumer.start(listen)
        assert most == 1_000
        assert threads < 100

    asyncio.run(run())
