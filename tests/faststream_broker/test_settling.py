"""Acknowledgement policies, redelivery, dead letters and order, on a real cluster."""

from __future__ import annotations

import asyncio
import re
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


@pytest.mark.parametrize("orderly", [False, True])
def test_the_last_try_tells_what_the_handler_raised(
    cluster: LocalCluster, admin: Admin, topic: str, group: str, orderly: bool
) -> None:
    broker = MinimqBroker(cluster.nameserver, group=group, logger=None)

    @broker.subscriber(
        topic,
        max_deliveries=1,
        retry_delays_s=(0.05,),
        orderly_retry_delay_s=0.05,
        orderly=orderly,
        ack_policy=AckPolicy.MANUAL,
    )
    async def handle(body: str, message: MinimqMessage) -> None:
        try:
            raise ValueError(body)
        except ValueError:
            await message.nack()

    async def consume() -> None:
        async with broker:
            await broker.start()
            await broker.publish("order", topic)
            await consumed(admin, group, lambda: bool(reasons(admin, group)))

    asyncio.run(consume())

    assert reasons(admin, group) == [("listener raised ValueError", b"order")]


def test_a_log_line_names_the_message(
    cluster: LocalCluster, topic: str, group: str, capfd: pytest.CaptureFixture[str]
) -> None:
    broker = MinimqBroker(cluster.nameserver, group=group)
    done = asyncio.Event()

    @broker.subscriber(topic)
    async def handle(number: int) -> None:
        if number == 2:
            done.set()

    async def consume() -> None:
        async with broker:
            await broker.start()
            for number in range(3):
                await broker.publish(number, topic)
            await asyncio.wait_for(done.wait(), WAIT_S)

    asyncio.run(consume())
    lines = [line for line in capfd.readouterr().out.splitlines() if line.endswith("Received")]
    places = [re.search(r"\| (broker-\w:\d+@\d+) +- Received$", line) for line in lines]
    assert [place and place[1].partition("@")[2] for place in places] == ["0", "1", "2"]


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


def test_a_message_is_kept_while_its_handler_runs(cluster: LocalCluster, admin: Admin, topic: str, group: str) -> None:
    broker = MinimqBroker(cluster.nameserver, group=group)
    deliveries: list[int] = []
    enough = asyncio.Event()

    # Two workers: one is free for a message that would be redelivered.
    @broker.subscriber(topic, invisible_s=3, max_workers=2)
    async def handle(body: str, message: MinimqMessage) -> None:
        deliveries.append(message.raw_message.delivery_count)
        await asyncio.wait_for(enough.wait(), WAIT_S)

    async def consume() -> None:
        async with broker:
            await broker.start()
            await broker.publish("long", topic)
            await asyncio.sleep(4.5)  # longer than the invisible duration: only time can show that nothing happens
            enough.set()
            await consumed(admin, group, lambda: True)

    asyncio.run(consume())

    assert deliveries == [1]


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


def test_a_message_group_is_handled_in_order_around_a_failure(
    cluster: LocalCluster, admin: Admin, new_name: Callable[[], str], group: str
) -> None:
    topic = new_name()
    admin.create_topic(topic, 2, fifo=True)
    broker = MinimqBroker(cluster.nameserver, group=group, logger=None)
    booked: dict[str, list[int]] = {}
    failures = 0

    # As many as there are messages: several of an account come with one receive.
    @broker.subscriber(topic, max_workers=32, retry_delays_s=(0.05,))
    async def book(number: int, message: MinimqMessage) -> None:
        nonlocal failures
        account = message.raw_message.message_group
        if (account, number) == ("account-1", 3) and failures < 2:
            failures += 1
            raise OSError("the account is locked")
        booked.setdefault(account, []).append(number)

    async def consume() -> None:
        async with broker:
            for number in range(8):
                for account in range(4):
                    await broker.publish(number, topic, message_group=f"account-{account}")
            await broker.start()
            await consumed(admin, group, lambda: sum(map(len, booked.values())) == 32)

    asyncio.run(consume())

    assert booked == {f"account-{account}": list(range(8)) for account in range(4)}
    assert failures == 2


def test_an_orderly_subscriber_keeps_the_order_of_a_queue(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    broker = MinimqBroker(cluster.nameserver, group=group, logger=None)
    calls: list[str] = []

    @broker.subscriber(topic, orderly=True, orderly_retry_delay_s=0.05)
    async def handle(body: str) -> None:
        calls.append(body)
        if body == "2" and calls.count("2") < 3:
            raise OSError("the disk is full")
        if body == "4":
            raise RejectMessage(reason="no such address")

    async def consume() -> None:
        async with broker:
            await broker.start()
            for number in range(6):
                await broker.publish(str(number), topic)
            await asyncio.to_thread(wait_until, lambda: len(calls) >= 8, WAIT_S)

    asyncio.run(consume())

    assert calls == ["0", "1", "2", "2", "2", "3", "4", "5"]
    assert admin.describe_group(group).lag == 0  # the last offset was committed at the end


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


@pytest.mark.parametrize("orderly", [False, True])
def test_a_new_group_begins_where_its_subscriber_says(
    cluster: LocalCluster, topic: str, group: str, *, orderly: bool
) -> None:
    broker = MinimqBroker(cluster.nameserver, group=group, logger=None)
    calls: list[str] = []

    @broker.subscriber(topic, orderly=orderly, start="earliest" if orderly else "latest")
    async def handle(body: str) -> None:
        calls.append(body)

    async def consume() -> None:
        async with broker:
            await broker.publish("before", topic)
            await broker.start()
            # A work queue begins when a broker first hears of its group.
            while "later" not in calls:
                await broker.publish("later", topic)
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(consume(), WAIT_S))

    assert ("before" in calls) is orderly


def test_what_waits_when_a_subscriber_stops_goes_to_the_next_one(
    cluster: LocalCluster, admin: Admin, topic: str, group: str
) -> None:
    deliveries: list[tuple[str, str, int]] = []

    async def consume(name: str, calls: int, *, fail: bool) -> None:
        broker = MinimqBroker(cluster.nameserver, group=group, graceful_timeout=0.1, logger=None)

        @broker.subscriber(topic)
        async def handle(body: str, message: MinimqMessage) -> None:
            deliveries.append((name, body, message.raw_message.delivery_count))
            if fail:
                await asyncio.sleep(3600)  # outlasts the broker

        async with broker:
            await broker.start()
            await broker.publish(name, topic)
            await asyncio.to_thread(wait_until, lambda: len(deliveries) == calls, WAIT_S)
            if not fail:
                await consumed(admin, group, lambda: True)

    asyncio.run(consume("first", 1, fail=True))
    asyncio.run(consume("second", 3, fail=False))

    assert deliveries[0] == ("first", "first", 1)
    assert sorted(deliveries[1:]) == [("second", "first", 2), ("second", "second", 1)]


def test_a_subscriber_without_a_group_is_rejected(cluster: LocalCluster, topic: str) -> None:
    broker = MinimqBroker(cluster.nameserver)

    @broker.subscriber(topic)
    async def handle(body: str) -> None: ...

    async def consume() -> None:
        async with broker:
            await broker.start()

    with pytest.raises(SetupError, match="has no consumer group: give"):
        asyncio.run(consume())
