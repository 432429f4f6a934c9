"""Interceptors of consumers, and of transactional producers, at a real broker."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from minimq import (
    ConsumeResult,
    LocalCluster,
    Message,
    MinimqError,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    ReceiveInterceptor,
    SendInterceptor,
    SendReceipt,
    TransactionalProducer,
    TransactionResolution,
    WorkQueueConsumer,
    aio,
)
from minimq.consuming.interceptor import ConsumerCall
from minimq.errors import InvalidArgument
from support.waiting import wait_until

TIMEOUT_S = 30.0
ROOM: contextvars.ContextVar[str] = contextvars.ContextVar("room", default="outside")


class Notes(ReceiveInterceptor):
    """Keeps the calls that have ended, and sets a context variable."""

    def __init__(self) -> None:
        self.calls: list[ConsumerCall] = []

    @contextmanager
    def receive(self, call: ConsumerCall) -> Iterator[None]:
        yield
        self.calls.append(call)

    @contextmanager
    def process(self, call: ConsumerCall) -> Iterator[None]:
        token = ROOM.set(call.group)
        yield
        ROOM.reset(token)
        self.calls.append(call)

    settle = receive

    def of(self, operation: str) -> list[ConsumerCall]:
        return [call for call in self.calls if call.operation == operation and (call.count or call.error)]


def send(cluster: LocalCluster, topic: str, *bodies: bytes) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send_many(Message(topic, body) for body in bodies)


def take(consumer: PullConsumer, count: int, into: list[ReceivedMessage]) -> None:
    def polled() -> bool:
        into.extend(consumer.poll(1.0))
        return len(into) == count

    wait_until(polled, TIMEOUT_S)


def bodies(calls: list[ConsumerCall]) -> list[bytes]:
    return sorted(message.body for call in calls for message in call.messages)


def test_polls(cluster: LocalCluster, topic: str, new_name: Callable[[], str]) -> None:
    notes = Notes()
    send(cluster, topic, b"1", b"2", b"3")
    group, found = new_name(), list[ReceivedMessage]()
    with PullConsumer(cluster.nameserver, group=group, client_id="me", interceptors=[notes]) as consumer:
        consumer.subscribe(topic)
        take(consumer, 3, found)
        with pytest.raises(InvalidArgument):
            consumer.poll(max_messages=0)
    assert bodies(notes.calls) == [b"1", b"2", b"3"]
    assert {(call.group, call.client_id) for call in notes.calls} == {(group, "me")}
    assert isinstance(notes.calls[-1].error, InvalidArgument)

    async def again() -> None:
        async with aio.PullConsumer(cluster.nameserver, group=new_name(), interceptors=[notes]) as other:
            other.subscribe(topic)
            seen = 0
            async for _ in other:
                seen += 1
                if seen == 3:
                    break

    notes.calls.clear()
    asyncio.run(again())
    assert bodies(notes.calls) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("mode", ["queues", "work_queue"])
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_listeners(
    cluster: LocalCluster, topic: str, new_name: Callable[[], str], mode: str, is_coroutine: bool
) -> None:
    notes, rooms, group = Notes(), list[str](), new_name()
    done = threading.Event()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        rooms.append(ROOM.get())
        if messages[0].body == b"bad" and messages[0].delivery_count == 1:
            raise OSError("not now")
        if messages[0].body == b"later" and messages[0].delivery_count == 1:
            return ConsumeResult.RETRY_LATER
        if len(rooms) == 5:
            done.set()
        return ConsumeResult.SUCCESS

    async def coroutine(messages: list[ReceivedMessage]) -> ConsumeResult:
        return listener(messages)

    given: dict[str, Any] = {
        "group": group,
        "mode": mode,
        "batch_size": 1,
        "retry_delays_s": (0.01,),
        "interceptors": [notes],
    }
    send(cluster, topic, b"good", b"bad", b"later")
    if is_coroutine:

        async def run() -> None:
            async with aio.PushConsumer(cluster.nameserver, **given) as consumer:
                consumer.subscribe(topic)
                await consumer.start(coroutine)
                assert await asyncio.to_thread(done.wait, TIMEOUT_S)

        asyncio.run(run())
    else:
        with PushConsumer(cluster.nameserver, **given) as consumer:
            consumer.subscribe(topic)
            consumer.start(listener)
            assert done.wait(TIMEOUT_S)
    assert ROOM.get() == "outside"
    assert rooms == [group] * 5
    assert bodies(notes.of("process")) == [b"bad", b"bad", b"good", b"later", b"later"]
    failed = {call.messages[0].body: call for call in notes.of("process") if call.failed}
    assert {body: (call.reason, type(call.error)) for body, call in failed.items()} == {
        b"bad": ("listener raised OSError", OSError),
        b"later": ("listener answered RETRY_LATER", type(None)),
    }


def test_a_work_queue(cluster: LocalCluster, topic: str, new_name: Callable[[], str]) -> None:
    notes, group = Notes(), new_name()
    send(cluster, topic, b"1", b"2", b"3", b"4", b"5")
    with WorkQueueConsumer(cluster.nameserver, group=group, interceptors=[notes]) as consumer:
        consumer.subscribe(topic)
        one, two, three, four, five = (consumer.receive(1)[0] for _ in range(5))
        consumer.extend([one])
        consumer.ack(each for each in (one, two.handle))
        consumer.release(three, delay_s=3600)
        consumer.reject(four)
        consumer.ack_async(five).result(TIMEOUT_S)
        wait_until(lambda: len(notes.of("ack")) == 2, TIMEOUT_S, what="its interceptors are told on another thread")
        with pytest.raises(InvalidArgument):
            consumer.ack("no handle")
    assert [(call.count, len(call.messages)) for call in notes.of("receive")] == [(1, 1)] * 5
    told = [(call.operation, call.count, len(call.messages)) for call in notes.calls if call.operation != "receive"]
    assert told == [("extend", 1, 1), ("ack", 2, 1), ("release", 1, 1), ("reject", 1, 1), ("ack", 1, 1), ("ack", 1, 0)]
    assert isinstance(notes.calls[-1].error, InvalidArgument)

    async def again() -> None:
        async with aio.WorkQueueConsumer(cluster.nameserver, group=new_name(), interceptors=[notes]) as other:
            other.subscribe(topic)
            messages = [message for _ in range(5) for message in await other.receive(1)]
            await other.ack(messages[:1])
            await (await other.ack_async(messages[1]))
            await other.release(messages[2:])

    notes.calls.clear()
    asyncio.run(again())
    told = [(call.operation, call.count, len(call.messages)) for call in notes.calls if call.operation != "receive"]
    assert told == [("ack", 1, 1), ("ack", 1, 1), ("release", 3, 3)]


class Sent(SendInterceptor):
    def __init__(self) -> None:
        self.outcomes: list[tuple[bytes, SendReceipt | None, type | None]] = []

    def before_send(self, message: Message) -> Message:
        return Message(message.topic, message.body, properties={"seen": "yes"})

    def after_send(self, message: Message, receipt: SendReceipt | None, error: MinimqError | None) -> None:
        self.outcomes.append((message.body, receipt, type(error) if error else None))


def test_half_messages(cluster: LocalCluster, topic: str, new_name: Callable[[], str]) -> None:
    sent, group = Sent(), new_name()
    with TransactionalProducer(
        cluster.nameserver, group=group, check=lambda _: TransactionResolution.ROLLBACK, interceptors=[sent]
    ) as producer:
        with producer.transaction() as tx:
            tx.send(Message(topic, b"1"))
            tx.send_many([Message(topic, b"2"), Message(topic, b"3")])
        with pytest.raises(InvalidArgument), producer.transaction() as tx:
            tx.send_many([Message(topic, b"4"), Message("no topic", b"5")])
    told = [(b"1", None, None), (b"2", None, None), (b"3", None, None)]
    assert sent.outcomes[:3] == told
    assert sorted(sent.outcomes[3:]) == [(b"4", None, InvalidArgument), (b"5", None, InvalidArgument)]

    async def again() -> None:
        async with (
            aio.TransactionalProducer(
                cluster.nameserver, group=group, check=lambda _: TransactionResolution.ROLLBACK, interceptors=[sent]
            ) as other,
            other.transaction() as tx,
        ):
            await tx.send(Message(topic, b"6"))

    asyncio.run(again())
    assert sent.outcomes[5:] == [(b"6", None, None)]
    with PullConsumer(cluster.nameserver, group=new_name()) as consumer:
        consumer.subscribe(topic)
        found: list[ReceivedMessage] = []
        take(consumer, 4, found)
    assert sorted(message.body for message in found) == [b"1", b"2", b"3", b"6"]
    assert all(message.properties["seen"] == "yes" for message in found)
