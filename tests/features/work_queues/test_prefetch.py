"""Messages that a consumer takes before it is asked for them: each is done once, and none stays behind."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from minimq import (
    Admin,
    ConsumeResult,
    LocalCluster,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    WorkQueueConsumer,
    aio,
)
from minimq.errors import InvalidArgument
from minimq.features.work_queues.pop_stream import PopStream
from minimq.features.work_queues.prefetch import PREFETCH_HOLD_S
from minimq.features.work_queues.work_queue_message import WorkQueueMessage
from minimq_proto.v1 import broker_pb2, work_queues_pb2
from support.raw_popper import RawPopper

COUNT = 2_000


@pytest.fixture
def filled(cluster: LocalCluster, admin: Admin, new_name: Callable[[], str]) -> str:
    """Return a topic with one queue and many messages."""
    name = new_name()
    admin.create_topic(name, queues=1, brokers=["broker-a"])
    with Producer(cluster.nameserver) as producer:
        producer.send_many([Message(name, b"%d" % number) for number in range(COUNT)])
    return name


def simple(cluster: LocalCluster, topic: str, **options: float) -> WorkQueueConsumer:
    consumer = WorkQueueConsumer(cluster.nameserver, group=topic, **options)  # type: ignore[arg-type]
    consumer.subscribe(topic)
    return consumer


def receive_until_prefetched(consumer: WorkQueueConsumer) -> list[WorkQueueMessage]:
    """Receive one by one until more messages are here than that; return those that were received."""
    found: list[WorkQueueMessage] = []
    while not consumer._reader._prefetch.count:
        found += consumer.receive(1, timeout=60)
    assert len(found) < COUNT / 2
    return found


def receive_all(consumer: WorkQueueConsumer, count: int) -> list[WorkQueueMessage]:
    found: list[WorkQueueMessage] = []
    while len(found) < count:
        found += consumer.receive(100, timeout=60)
    return found


def test_what_nobody_receives_goes_to_others_soon_and_the_rest_keeps_its_time(
    cluster: LocalCluster, admin: Admin, filled: str
) -> None:
    with simple(cluster, filled, invisible_s=3600) as first, simple(cluster, filled) as second:
        mine = receive_until_prefetched(first)
        assert admin.describe_group(filled).in_flight > len(mine)
        theirs = receive_all(second, COUNT - len(mine))  # though the first one is busy for an hour
        assert {message.delivery_count for message in theirs} == {1}  # prefetched messages were not delivered
        assert Counter(message.body for message in mine + theirs) == Counter(b"%d" % at for at in range(COUNT))
        first.ack(mine)
        second.ack(theirs)
        assert admin.describe_group(filled).lag == 0


def test_a_message_is_received_with_its_whole_invisible_duration(
    cluster: LocalCluster, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, kept_ms = PopStream.take, set[tuple[bool, int]]()

    async def take(stream: PopStream, wanted: work_queues_pb2.PopTake) -> work_queues_pb2.PoppedMessages:
        kept_ms.add((wanted.ahead, wanted.invisible_ms))
        return await real(stream, wanted)

    monkeypatch.setattr(PopStream, "take", take)
    with simple(cluster, filled, invisible_s=7) as consumer:
        receive_until_prefetched(consumer)
    # It is not kept from others for its consumer alone, but also for as long as it may wait before it is received.
    assert kept_ms == {(False, 7_000), (True, 7_000 + round(PREFETCH_HOLD_S * 1000))}


def delay_prefetching(monkeypatch: pytest.MonkeyPatch, delay_s: float) -> tuple[list[bool], set[int]]:
    """Delay answers with prefetched messages; return for each request if it prefetches, and the epochs of these."""
    real, requests, delayed = PopStream.take, list[bool](), set[int]()

    async def take(stream: PopStream, wanted: work_queues_pb2.PopTake) -> work_queues_pb2.PoppedMessages:
        requests.append(wanted.ahead)
        popped = await real(stream, wanted)
        if wanted.ahead and popped.runs:
            delayed.add(popped.epoch)
            await asyncio.sleep(delay_s)
        return popped

    monkeypatch.setattr(PopStream, "take", take)
    return requests, delayed


def test_messages_that_arrive_too_late_are_not_received_and_hold_up_nobody(
    cluster: LocalCluster, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, delayed = delay_prefetching(monkeypatch, PREFETCH_HOLD_S + 0.1)
    with simple(cluster, filled) as consumer:
        while not delayed:
            consumer.receive(1, timeout=0)
        found = consumer.receive(1, timeout=3)  # it waits for those that are late
        assert not delayed & {message.epoch for message in found}
        assert (True, True) not in pairwise(requests)  # nor prefetched over and over while somebody waits


def test_close_returns_untried_what_is_being_prefetched(
    cluster: LocalCluster, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, delayed = delay_prefetching(monkeypatch, 0.3)
    found: list[WorkQueueMessage] = []
    with simple(cluster, filled) as first:
        while not delayed:
            found += first.receive(1, timeout=0)
        first.ack(found)
    with simple(cluster, filled) as second:
        assert {message.delivery_count for message in receive_all(second, COUNT - len(found))} == {1}


def test_no_more_is_taken_ahead_than_was_received_lately_so_that_others_get_their_share(
    cluster: LocalCluster, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, found, asked = PopStream.take, list[WorkQueueMessage](), list[tuple[int, int]]()

    async def take(stream: PopStream, wanted: work_queues_pb2.PopTake) -> work_queues_pb2.PoppedMessages:
        if wanted.ahead:
            asked.append((wanted.max_messages, len(found)))
        return await real(stream, wanted)

    monkeypatch.setattr(PopStream, "take", take)
    with simple(cluster, filled) as consumer:
        while len(found) < COUNT:
            found += consumer.receive(1, timeout=60)
    assert asked
    assert all(count <= received for count, received in asked)


def test_a_listener_that_is_slow_all_at_once_holds_up_one_message(cluster: LocalCluster, filled: str) -> None:
    mine: list[bytes] = []
    is_slow, may_go_on = threading.Event(), threading.Event()

    def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
        mine.extend(message.body for message in messages)
        if consumer._reader._reader._prefetch.count:  # type: ignore[union-attr]
            is_slow.set()
            may_go_on.wait(60)
        return ConsumeResult.SUCCESS

    with (
        PushConsumer(cluster.nameserver, group=filled, mode="work_queue", threads=1, invisible_s=3600) as consumer,
        simple(cluster, filled) as other,
    ):
        consumer.subscribe(filled)
        consumer.start(listen)
        assert is_slow.wait(60)
        theirs = receive_all(other, COUNT - len(mine))
        assert {message.delivery_count for message in theirs} == {1}
        assert Counter([*mine, *(message.body for message in theirs)]) == Counter(b"%d" % at for at in range(COUNT))
        may_go_on.set()


def test_who_closes_leaves_what_was_taken_ahead_to_others_untried(cluster: LocalCluster, filled: str) -> None:
    with simple(cluster, filled, invisible_s=3600) as first:
        mine = receive_until_prefetched(first)
        first.ack(mine)
    with simple(cluster, filled) as second:
        rest = receive_all(second, COUNT - len(mine))
        assert {message.delivery_count for message in rest} == {1}
        assert not {message.body for message in mine} & {message.body for message in rest}


def test_what_failed_is_not_taken_ahead(cluster: LocalCluster, filled: str) -> None:
    with RawPopper(cluster.brokers[0].address, filled, "a", filled) as popper:
        popper.begin(takes=[popper.taking(10)])
        answer = popper.answer().popped
        assert answer.has_more
        failed = popper.take(1)
        popper.settle(failed, broker_pb2.POP_OUTCOME_FREE)
        ahead = popper.taking(10)
        ahead.ahead = True
        popper.begin(takes=[ahead])
        assert not popper.answer().popped.runs
        assert [(message.offset, message.delivery_count) for message in popper.take(10)] == [(failed[0].offset, 2)]
        popper.begin(takes=[ahead])
        assert popper.answer().popped.runs[0].count == 10


def test_acknowledgements_go_before_the_next_message_is_taken(
    cluster: LocalCluster, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the next message kills its worker again and again, those before it are done."""
    settled, before_takes = 0, list[int]()
    send = PopStream._send

    def sent(
        stream: PopStream, settles: Sequence[broker_pb2.PopSettle], takes: Sequence[work_queues_pb2.PopTake] = ()
    ) -> None:
        nonlocal settled
        settled += sum(sum(settle.spans[1::2]) for settle in settles)
        before_takes.extend([settled] * len(takes))
        send(stream, settles, takes)

    monkeypatch.setattr(PopStream, "_send", sent)
    with simple(cluster, filled, prefetch_messages=0) as consumer:
        futures = [consumer.ack_async(consumer.receive(1)) for _ in range(50)]
        assert before_takes == [*range(50)]
        for future in futures:
            future.result(60)


def test_what_was_released_comes_again_though_others_are_taken_ahead(cluster: LocalCluster, filled: str) -> None:
    with simple(cluster, filled) as consumer:
        [released] = receive_until_prefetched(consumer)[-1:]
        consumer.release(released)
        found: list[WorkQueueMessage] = []
        while not any(message.delivery_count > 1 for message in found):
            found = consumer.receive(1, timeout=60)
            consumer.ack_async(found)
        assert found[0].body == released.body


def test_nothing_is_taken_ahead_unless_that_is_safe(cluster: LocalCluster, filled: str) -> None:
    for options in ({"prefetch_messages": 0}, {"release_on_close": False}, {"max_deliveries": 1}):
        with simple(cluster, filled, **options) as consumer:
            for _ in range(60):
                assert consumer.receive(1)
            assert not consumer._reader._prefetch.count
    with pytest.raises(InvalidArgument, match="prefetch_messages is -1: it must be a whole number from 0 to 10000"):
        simple(cluster, filled, prefetch_messages=-1)


def test_a_task_that_receives_from_memory_lets_others_run(cluster: LocalCluster, filled: str) -> None:
    async def receive() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with aio.WorkQueueConsumer(cluster.nameserver, group=filled) as consumer:
            consumer.subscribe(filled)
            counting = asyncio.create_task(count())
            found: list[WorkQueueMessage] = []
            while len(found) < COUNT:
                before, received = turns, await consumer.receive(1)
                assert turns > before
                found += received
            counting.cancel()
            await consumer.ack(found)
        return len(found)

    assert asyncio.run(receive()) == COUNT
