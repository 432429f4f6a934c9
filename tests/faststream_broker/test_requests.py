"""Requests and replies between brokers of FastStream, and with plain clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from faststream_minimq import MinimqBroker, MinimqMessage, MinimqResponse
from minimq import errors
from minimq.local.local_cluster import LocalCluster

WAIT_S = 60.0


def service(cluster: LocalCluster, topic: str, group: str) -> MinimqBroker:
    broker = MinimqBroker(cluster.nameserver, group=group, logger=None)

    @broker.subscriber(topic, max_workers=20)
    async def handle(body: str, message: MinimqMessage) -> MinimqResponse | str:
        if body == "unknown":
            return MinimqResponse(error="no such flight")
        return MinimqResponse(body.upper(), headers={"seen": message.raw_message.message_id})

    return broker


def test_a_request_returns_the_answer_of_a_handler(cluster: LocalCluster, topic: str, group: str) -> None:
    asking = MinimqBroker(cluster.nameserver)

    async def ask() -> list[MinimqMessage]:
        async with service(cluster, topic, group) as answering, asking:
            await answering.start()
            return await asyncio.gather(
                *(
                    asking.request(f"hello {number}", topic, timeout=WAIT_S, correlation_id=f"c{number}")
                    for number in range(50)
                )
            )

    replies = asyncio.run(ask())

    assert [reply.body for reply in replies] == [b"HELLO %d" % number for number in range(50)]
    assert [reply.correlation_id for reply in replies] == [f"c{number}" for number in range(50)]
    assert len({reply.headers["seen"] for reply in replies}) == 50


def test_a_service_replies_with_an_error(cluster: LocalCluster, topic: str, group: str) -> None:
    async def ask() -> None:
        async with service(cluster, topic, group) as broker:
            await broker.start()
            await broker.request("unknown", topic, timeout=WAIT_S)

    with pytest.raises(errors.RequestFailed, match="no such flight"):
        asyncio.run(ask())


def test_an_answer_goes_to_the_topic_that_a_message_names(
    cluster: LocalCluster, new_name: Callable[[], str], topic: str, group: str
) -> None:
    answers = new_name()
    asking = MinimqBroker(cluster.nameserver, group=group, create_queues=1)
    seen: asyncio.Queue[MinimqMessage] = asyncio.Queue()

    @asking.subscriber(answers)
    async def note(message: MinimqMessage) -> None:
        await seen.put(message)

    async def ask() -> MinimqMessage:
        async with service(cluster, topic, group) as answering, asking:
            await answering.start()
            await asking.start()
            await asking.publish("hello", topic, reply_to=answers, correlation_id="c1")
            return await asyncio.wait_for(seen.get(), WAIT_S)

    message = asyncio.run(ask())

    assert (message.body, message.correlation_id) == (b"HELLO", "c1")
