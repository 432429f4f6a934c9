"""Code of the user that blocks: it holds up its own client, and never another client of the same `Cluster`."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from minimq import (
    Cluster,
    ConsumeResult,
    LocalCluster,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceiveInterceptor,
    SendInterceptor,
    WorkQueueConsumer,
    aio,
)
from minimq.consuming import group_member
from minimq.consuming.broker_sessions import Heartbeats
from minimq.consuming.received import ReceivedBatch
from minimq.features.work_queues import work_queue_message
from support.waiting import wait_until

TIMEOUT_S = 60.0
Wait = Callable[..., Any]


def revoked(shared: Cluster, topic: str, group: str, wait: Wait) -> None:
    with PullConsumer(shared, group=group, on_revoked=wait) as consumer:
        consumer.subscribe(topic)
        wait_until(lambda: consumer.poll(0.05))


def revoked_in_asyncio(shared: Cluster, topic: str, group: str, wait: Wait) -> None:
    async def run() -> None:
        async with aio.PullConsumer(shared, group=group, on_revoked=wait) as consumer:
            consumer.subscribe(topic)
            while not await consumer.poll(0.05):
                pass

    asyncio.run(run())


def listened(shared: Cluster, topic: str, group: str, wait: Wait, **options: Any) -> None:
    is_called = threading.Event()

    def listen(_: object) -> ConsumeResult:
        wait()
        is_called.set()
        return ConsumeResult.SUCCESS

    with PushConsumer(shared, group=group, **options) as consumer:
        consumer.subscribe(topic)
        consumer.start(listen)
        assert is_called.wait(TIMEOUT_S)


def listened_to_work_queue(shared: Cluster, topic: str, group: str, wait: Wait) -> None:
    listened(shared, topic, group, wait, mode="work_queue")


def send_intercepted(shared: Cluster, topic: str, group: str, wait: Wait) -> None:
    class Blocking(SendInterceptor):
        def after_send(self, *_: object) -> None:
            wait()

    with Producer(shared, interceptors=[Blocking()]) as producer:
        producer.send(Message(topic, b"intercepted"))


class BlockingReceipt(ReceiveInterceptor):
    def __init__(self, wait: Wait) -> None:
        self._wait = wait

    @contextmanager
    def receive(self, _: object) -> Iterator[None]:
        yield
        self._wait()


def poll_intercepted(shared: Cluster, topic: str, group: str, wait: Wait) -> None:
    with PullConsumer(shared, group=group, interceptors=[BlockingReceipt(wait)]) as consumer:
        consumer.subscribe(topic)
        consumer.poll(TIMEOUT_S)


def receive_intercepted(shared: Cluster, topic: str, group: str, wait: Wait) -> None:
    with WorkQueueConsumer(shared, group=group, interceptors=[BlockingReceipt(wait)]) as consumer:
        consumer.subscribe(topic)
        consumer.receive(timeout=TIMEOUT_S)


@contextmanager
def slow_decoding(wait: Wait) -> Iterator[None]:
    """Decoding of messages of work queues takes as long as `wait`."""

    class Slow(ReceivedBatch):
        def __init__(self, *given: Any) -> None:
            wait()
            super().__init__(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_queue_message, "ReceivedBatch", Slow)
        yield


def receive_slowly_decoded(shared: Cluster, topic: str, group: str, wait: Wait) -> None:
    with slow_decoding(wait), WorkQueueConsumer(shared, group=group) as consumer:
        consumer.subscribe(topic)
        assert consumer.receive(timeout=TIMEOUT_S)


def receive_slowly_decoded_in_asyncio(shared: Cluster, topic: str, group: str, wait: Wait) -> None:
    async def run() -> None:
        async with aio.WorkQueueConsumer(shared, group=group) as consumer:
            consumer.subscribe(topic)
            assert await consumer.receive(timeout=TIMEOUT_S)

    with slow_decoding(wait):
        asyncio.run(run())


def listened_to_slowly_decoded(shared: Cluster, topic: str, group: str, wait: Wait) -> None:
    with slow_decoding(wait):
        listened(shared, topic, group, lambda: None, mode="work_queue")


@pytest.mark.parametrize(
    "block",
    [
        revoked,
        revoked_in_asyncio,
        listened,
        listened_to_work_queue,
        send_intercepted,
        poll_intercepted,
        receive_intercepted,
        receive_slowly_decoded,
        receive_slowly_decoded_in_asyncio,
        listened_to_slowly_decoded,
    ],
)
def test_it_stops_no_heartbeat_of_another_client(
    cluster: LocalCluster,
    topic: str,
    new_name: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    block: Callable[[Cluster, str, str, Wait], None],
) -> None:
    answered: Counter[Heartbeats] = Counter()
    count_answer = Heartbeats.answered

    def count(beats: Heartbeats, number: int) -> None:
        answered[beats] += 1
        count_answer(beats, number)

    monkeypatch.setattr(group_member, "HEARTBEAT_INTERVAL_S", 0.05)
    monkeypatch.setattr(Heartbeats, "answered", count)
    is_blocked, may_return = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        is_blocked.set()
        assert may_return.wait(TIMEOUT_S)

    with (
        Cluster(cluster.nameserver) as shared,
        Producer(shared) as producer,
        PullConsumer(shared, group=new_name()) as other,
    ):
        other.subscribe(topic)
        producer.send(Message(topic, b"first"))
        wait_until(lambda: other.poll(0.05))
        theirs = wait_until(lambda: [*answered])
        blocked = threading.Thread(target=block, args=(shared, topic, new_name(), wait))
        blocked.start()
        try:
            assert is_blocked.wait(TIMEOUT_S)
            before = {beats: answered[beats] for beats in theirs}
            wait_until(lambda: all(answered[beats] >= before[beats] + 3 for beats in theirs), TIMEOUT_S)
            producer.send(Message(topic, b"second"))
            wait_until(lambda: any(message.body == b"second" for message in other.poll(0.05)), TIMEOUT_S)
        finally:
            may_return.set()
            blocked.join(TIMEOUT_S)
        assert not blocked.is_alive()


@pytest.mark.parametrize("made", [PullConsumer, PushConsumer])
def test_closing_does_not_wait_for_an_allocation_strategy_that_hangs(
    cluster: LocalCluster, topic: str, group: str, made: type[PullConsumer | PushConsumer]
) -> None:
    is_called, may_return = threading.Event(), threading.Event()

    class Hanging:
        name = "hanging"

        def allocate(self, _group: str, _member: str, queues: Sequence[MessageQueue], _members: object) -> Any:
            is_called.set()
            may_return.wait(2 * TIMEOUT_S)
            return queues

    consumer = made(cluster.nameserver, group=group, allocation=Hanging())
    consumer.subscribe(topic)
    if isinstance(consumer, PushConsumer):
        consumer.start(lambda _: ConsumeResult.SUCCESS)
    else:
        consumer.poll(0.05)
    closing = threading.Thread(target=consumer.close)
    try:
        assert is_called.wait(TIMEOUT_S)
        closing.start()
        closing.join(TIMEOUT_S)
        assert not closing.is_alive()
    finally:
        may_return.set()
