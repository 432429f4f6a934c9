"""Acknowledgement policies, redelivery, dead letters and order, on a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from faststream import AckPolicy
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SetupError

from faststream_minimq import MinimqBroker, MinimqMessage
from minimq.admin.admin import Admin
from minimq.local.local_cluster import LocalCluster
from support.waiting import wait_until

WAIT_S = 60.0


async def consumed(admin: Admin, group: str, calls: Callable[[], bool]) -> None:
    """Wait until handlers were called, and everything is settled: before a call brokers may not know the group."""
    await asyncio.to_thread(wait_until, calls, WAIT_S)
    await asyncio.to_thread(wait_until, lambda: admin.describe_group(group).lag == 0, WAIT_S)


def reasons(admin: Admin, group: str) -> list[tuple[str | None, bytes]]:
    return sorted((letter.reason, letter.body) for letter in admin.dead_letters(group))


def test_a_handler_that_fails_is_called_again_and_then_a_dead_letter_remains(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    broker = MinimqBroker(cluster.nameserver, group=group, logger=None)
    deliveries: list[int] = []

    @broker.subscriber(topic, max_deliveries=3, retry_delays_s=(0.05,))
    async def handle(body: str, message: MinimqMessage) -> None:
        deliveries.append(message.raw_message.delivery_count)
        raise OSError("the disk is full")

    async def consume() -> None:
        async with broker:
            await broker.start()
            await broker.publish("order", topic)
            await consumed(admin, group, lambda: len(deliveries) == 3)

    asyncio.run(consume())

    assert deliveries == [1, 2, 3]
    assert reasons(admin, group) == [("listener raised OSError", b"order")]


@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.ACK_FIRST, AckPolicy.REJECT_ON_ERROR])
def test_a_policy_decides_about_a_handler_that_fails(
    cluster: LocalCluster, admin: Admin, topic: str, group: str, policy: AckPolicy
) -> None:
    broker = MinimqBroker(cluster.nameserver, group=group, logger=None, ack_policy=policy)
    seen: list[str] = []

    @broker.subscriber(topic, retry_delays_s=(0.05,))
    async def handle(body: str) -> None:
        seen.append(body)
        raise OSError("the disk is full")

    async def consume() -> None:
        async with broker:
            await broker.start()
            await broker.publish_batch("first", "second", topic=topic)
            await consumed(admin, group, lambda: len(seen) == 2)

    asyncio.run(consume())

    assert seen == ["first", "second"]
    reason = "listener raised OSError"
    letters = [(reason, b"first"), (reason, b"second")] if policy is AckPolicy.REJECT_ON_ERROR else []
    assert reasons(admin, group) == letters


def test_a_handler_settles_its_message_by_itself(cluster: LocalCluster, admin: Admin, topic: str, group: str) -> None:
    broker = MinimqBroker(cluster.nameserver, group=group, logger=None)
    calls: list[tuple[str, int]] = []

    @broker.subscriber(topic, ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, message: MinimqMessage) -> None:
        calls.append((body, message.raw_message.delivery_count))
        if body == "good":
            await message.ack()
        elif body == "bad":
            await message.reject("no such address")
        elif message.raw_message.delivery_count == 1:
            await message.nack(delay_s=0.05)
            await message.ack()  # settled before: does nothing
        else:
            await message.ack()

    async def consume() -> None:
        async with broker:
            await broker.start()
            await broker.publish_batch("good", "bad", "busy", topic=topic)
            await consumed(admin, group, lambda: len(calls) == 4)

    asyncio.run(consume())

    assert sorted(calls) == [("bad", 1), ("busy", 1), ("busy", 2), ("good", 1)]
    assert reasons(admin, group) == [("no such address", b"bad")]


def test_an_error_of_faststream_settles_the_message(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    broker = MinimqBroker(cluster.nameserver, group=group, logger=None)
    calls: list[str] = []

    @broker.subscriber(topic)
    async def handle(body: str) -> None:
        calls.append(body)
        if body == "busy" and calls.count("busy") == 1:
            raise NackMessage(delay_s=0)
        if body == "bad":
            raise RejectMessage(reason="no such address")
        raise AckMessage

    async def consume() -> None:
        async with broker:
            await broker.start()
            await broker.publish_batch("busy", "bad", topic=topic)
            await consumed(admin, group, lambda: len(calls) == 3)

    asyncio.run(consume())

    assert sorted(calls) == ["bad", "busy", "busy"]
    assert reasons(admin, group) == [("no such address", b"bad")]


def test_workers_run_at_the_same_time_up_to_their_number(cluster: LocalCluster, topic: str, group: str) -> None:
    broker = MinimqBroker(cluster.nameserver, group=group)
    running, most, ended = 0, 0, asyncio.Semaphore(0)
    together = asyncio.Barrier(4)

    @broker.subscriber(topic, max_workers=4)
    async def handle(body: str) -> None:
        nonlocal running, most
        if body == "alone":
            ended.release()
            return
        running += 1
        most = max(most, running)
        await asyncio.wait_for(together.wait(), WAIT_S)  # ends only if four run
        running -= 1
        ended.release()

    async def consume() -> None:
        async with broker:
            await broker.start()
            for _ in range(3):  # what comes alone leaves the places of the others free
                await broker.publish("alone", topic)
                await asyncio.wait_for(ended.acquire(), WAIT_S)
            await broker.publish_batch(*map(str, range(16)), topic=topic)
            for _ in range(16):
                await asyncio.wait_for(ended.acquire(), WAIT_S)

    asyncio.run(consume())

    assert most == 4


def test_an_orderly_message_that_nobody_acknowledges_is_handled_again(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    broker = MinimqBroker(cluster.nameserver, group=group, logger=None)
    calls: list[str] = []

    @broker.subscriber(topic, orderly=True, orderly_retry_delay_s=0.05, ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, message: MinimqMessage) -> None:
        calls.append(body)
        if body == "0" or calls.count("1") == 3:
            await message.ack()
        if body == "0":
            raise OSError("too late: it is acknowledged")

    async def consume() -> None:
        async with broker:
            await broker.start()
            for number in range(2):
                await broker.publish(str(number), topic)
            await asyncio.to_thread(wait_until, lambda: len(calls) >= 4, WAIT_S)

    asyncio.run(consume())

    assert calls == ["0", "1", "1", "1"]
    assert admin.describe_group(group).lag == 0


def test_a_subscriber_without_a_group_is_rejected(cluster: LocalCluster, topic: str) -> None:
    broker = MinimqBroker(cluster.nameserver)

    @broker.subscriber(topic)
    async def handle(body: str) -> None: ...

    async def consume() -> None:
        async with broker:
            await broker.start()

    with pytest.raises(SetupError, match="has no consumer group: give"):
        asyncio.run(consume())
