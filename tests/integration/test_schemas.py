"""Values over real servers: serializers serve every kind of consumer, and a bad body stops none of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from minimq import (
    Admin,
    ConsumeResult,
    LocalCluster,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    WorkQueueConsumer,
    aio,
)
from minimq.errors import MalformedBody
from minimq.features.listeners.push_consumer import Mode
from minimq.schemas import AvroSerializer, MsgspecSerializer, SchemaRegistry
from minimq.schemas.serializer import Framing
from support.registry_server import RegistryServer, registry_server

TIMEOUT_S = 30.0
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}


class Price(msgspec.Struct):
    """A price."""

    cents: int


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as served:
        yield served


@pytest.fixture
def registry(server: RegistryServer) -> SchemaRegistry:
    return SchemaRegistry(server.url)


@pytest.mark.parametrize("framing", ["prefix", "header"])
def test_values_go_by_every_kind_of_client(
    cluster: LocalCluster,
    producer: Producer,
    topic: str,
    new_name: Callable[[], str],
    registry: SchemaRegistry,
    framing: Framing,
) -> None:
    orders = AvroSerializer(ORDER, registry, framing=framing)
    producer.send_many(orders.message(topic, {"id": f"o-{number}"}, keys=[str(number)]) for number in range(20))
    with producer.transaction() as transaction:
        transaction.send(orders.message(topic, {"id": "o-20"}))
    expected = {f"o-{number}" for number in range(21)}

    with PullConsumer(cluster.nameserver, group=new_name()) as puller:
        puller.subscribe(topic)
        pulled: set[str] = set()
        while not pulled >= expected:
            pulled.update(orders.value(message)["id"] for message in puller.poll(TIMEOUT_S))
    assert pulled == expected

    async def read() -> set[str]:
        found: set[str] = set()
        async with aio.WorkQueueConsumer(cluster.nameserver, group=new_name()) as worker:
            worker.subscribe(topic)
            async with asyncio.timeout(TIMEOUT_S):
                while not found >= expected:
                    for message in await worker.receive(max_messages=10, timeout=0.5):
                        found.add((await orders.value_async(message))["id"])
                        await worker.ack(message)
        return found

    assert asyncio.run(read()) == expected


@pytest.mark.parametrize("kind", ["queues", "orderly", "messages"])
def test_a_bad_body_is_a_dead_letter_at_once(
    cluster: LocalCluster, producer: Producer, topic: str, new_name: Callable[[], str], kind: str
) -> None:
    group, prices = new_name(), MsgspecSerializer(Price)
    calls: list[bytes] = []
    good: set[int] = set()
    done = threading.Event()

    def listen(messages: list[ReceivedMessage]) -> ConsumeResult:
        calls.extend(message.body for message in messages)
        good.update(prices.value(message).cents for message in messages)
        if len(good) == 10:
            done.set()
        return ConsumeResult.SUCCESS

    bodies = [prices.message(topic, Price(number)) for number in range(10)]
    bodies.insert(5, Message(topic, b'{"cents": "many"}'))
    queue = producer.send(bodies[0]).queue
    for message in bodies[1:]:
        producer.send(message, queue=queue)
    mode: Mode = "work_queue" if kind == "messages" else "queues"
    with PushConsumer(
        cluster.nameserver, group=group, batch_size=1, orderly=kind == "orderly", mode=mode, retry_delays_s=(60,)
    ) as consumer:
        consumer.subscribe(topic)
        consumer.start(listen)
        assert done.wait(TIMEOUT_S)
    assert calls.count(b'{"cents": "many"}') == 1
    with Admin(cluster.nameserver) as admin:
        letters = list(admin.dead_letters(group))
    assert [(letter.body, letter.reason) for letter in letters] == [
        (b'{"cents": "many"}', "listener raised MalformedBody")
    ]


def test_a_poll_goes_on_after_a_bad_body(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    prices = MsgspecSerializer(Price)
    producer.send_many([prices.message(topic, Price(1)), Message(topic, b"{}"), prices.message(topic, Price(2))])
    found: list[int] = []
    bad = 0
    with WorkQueueConsumer(cluster.nameserver, group=f"{topic}-work") as consumer:
        consumer.subscribe(topic)
        while len(found) < 2 or not bad:
            for message in consumer.receive(max_messages=10, timeout=TIMEOUT_S):
                try:
                    found.append(prices.value(message).cents)
                    consumer.ack(message)
                except MalformedBody as error:
                    consumer.reject(message, reason=error.message)
                    bad += 1
    assert sorted(found) == [1, 2]
