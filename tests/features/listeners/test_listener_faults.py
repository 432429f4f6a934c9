"""Listeners and callbacks that hang, end their thread or answer nonsense: the consumer goes on, or says why not."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
from collections import Counter
from typing import Any, Literal

import pytest

from minimq import ConsumeResult, LocalCluster, Message, Producer, PushConsumer, ReceivedMessage
from minimq.aio import PushConsumer as AsyncPushConsumer
from minimq_common.errors import InvalidArgument
from support.listening import Listener
from support.waiting import wait_until

TIMEOUT_S = 40.0


# ---- starts -------------------------------------------------------------------------------------


def test_a_listener_that_ends_the_program_is_not_waited_for(
    cluster: LocalCluster, producer: Producer, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send(Message(topic, b"body"))

    async def listen(_: list[ReceivedMessage]) -> ConsumeResult:
        sys.exit(3)

    async def run() -> None:
        async with AsyncPushConsumer(cluster.nameserver, group=group, retry_delays_s=(0.05,)) as consumer:
            consumer.subscribe(topic)
            await consumer.start(listen)
            await asyncio.sleep(TIMEOUT_S)

    with pytest.raises(SystemExit):
        asyncio.run(run())
    gc.collect()
    assert "the listener failed" in caplog.text  # so `close` knew that the call is over
    assert "never retrieved" not in caplog.text
    listener = Listener()
    with PushConsumer(cluster.nameserver, group=group, retry_delays_s=(0.05,)) as successor:
        successor.subscribe(topic)
        successor.start(listener)
        wait_until(lambda: listener.calls.total() == 1, TIMEOUT_S)


# ---- listeners ----------------------------------------------------------------------------------


class Awaited:
    async def __call__(self, messages: list[ReceivedMessage]) -> ConsumeResult:
        return ConsumeResult.SUCCESS


@pytest.mark.parametrize("listener", [Awaited(), Awaited().__call__, functools.partial(Awaited().__call__), None])
def test_what_is_no_plain_function_is_no_listener(cluster: LocalCluster, topic: str, group: str, listener: Any) -> None:
    with PushConsumer(cluster.nameserver, group=group) as consumer:
        consumer.subscribe(topic)
        with pytest.raises(InvalidArgument, match="must be a plain function"):
            consumer.start(listener)


def test_a_plain_function_is_no_listener_for_asyncio(cluster: LocalCluster, topic: str, group: str) -> None:
    async def run() -> None:
        async with AsyncPushConsumer(cluster.nameserver, group=group) as consumer:
            consumer.subscribe(topic)
            with pytest.raises(InvalidArgument, match="must be a coroutine function"):
                await consumer.start(lambda _: ConsumeResult.SUCCESS)  # type: ignore[arg-type, return-value]
            await consumer.start(Awaited())

    asyncio.run(run())


class Abort(BaseException):
    """An error that a library may raise to end a task, past any `except Exception`."""


@pytest.mark.parametrize("mode", ["queues", "work_queue"])
def test_whatever_an_awaited_listener_raises_it_is_called_again_and_others_go_on(
    cluster: LocalCluster,
    producer: Producer,
    topic: str,
    group: str,
    caplog: pytest.LogCaptureFixture,
    mode: Literal["queues", "work_queue"],
) -> None:
    producer.send_many([Message(topic, b"bad" if number % 3 == 0 else b"good") for number in range(12)])
    calls = Counter[bytes]()

    async def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
        calls.update(message.body for message in messages)
        if any(message.body == b"bad" and message.delivery_count == 1 for message in messages):
            raise Abort("stop this task")
        return ConsumeResult.SUCCESS

    async def run() -> None:
        async with AsyncPushConsumer(
            cluster.nameserver, group=group, mode=mode, threads=2, batch_size=1, retry_delays_s=(0.05,)
        ) as consumer:
            consumer.subscribe(topic)
            await consumer.start(listen)
            await asyncio.to_thread(wait_until, lambda: calls.total() == 16, TIMEOUT_S)

    asyncio.run(run())
    assert calls == {b"bad": 8, b"good": 8}
    assert "Abort: stop this task" in caplog.text
