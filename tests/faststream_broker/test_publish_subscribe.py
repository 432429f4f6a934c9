"""Handlers, publishers and filters on a real cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from itertools import chain

from faststream import BaseMiddleware
from pydantic import BaseModel

from faststream_minimq import MinimqBroker, MinimqMessage, MinimqResponse, MinimqRouter
from minimq.local.local_cluster import LocalCluster

WAIT_S = 60.0


class Order(BaseModel):
    number: int
    cups: int = 1


def test_what_is_published_is_handled_with_its_fields(cluster: LocalCluster, new_name: Callable[[], str]) -> None:
    topic = new_name()
    broker = MinimqBroker(cluster.nameserver, group=new_name(), create_queues=2)
    seen: asyncio.Queue[tuple[Order, MinimqMessage]] = asyncio.Queue()

    @broker.subscriber(topic)
    async def handle(order: Order, message: MinimqMessage) -> None:
        await seen.put((order, message))

    async def publish() -> tuple[Order, MinimqMessage]:
        async with broker:
            await broker.start()
            receipt = await broker.publish(
                Order(number=7), topic, headers={"shop": 3}, correlation_id="c-7", tag="paid", keys=("o-7",)
            )
            order, message = await asyncio.wait_for(seen.get(), WAIT_S)
            assert message.message_id == receipt.message_id
            return order, message

    order, message = asyncio.run(publish())

    assert order == Order(number=7)
    assert (message.headers, message.correlation_id) == ({"shop": "3"}, "c-7")
    raw = message.raw_message
    assert (raw.topic, raw.tag, tuple(raw.keys), raw.delivery_count) == (topic, "paid", ("o-7",), 1)


def test_the_broker_filters_by_tag_and_property(cluster: LocalCluster, new_name: Callable[[], str], topic: str) -> None:
    broker = MinimqBroker(cluster.nameserver)
    paid, large, ends = list[str](), list[str](), asyncio.Queue[None]()

    @broker.subscriber(topic, group=new_name(), tags="paid || end")
    async def handle_paid(body: str, message: MinimqMessage) -> None:
        paid.append(body)
        if message.raw_message.tag == "end":
            await ends.put(None)

    @broker.subscriber(topic, group=new_name(), where="cups > 5")
    async def handle_large(body: str, message: MinimqMessage) -> None:
        large.append(body)
        if message.raw_message.tag == "end":
            await ends.put(None)

    async def publish() -> None:
        async with broker:
            await broker.start()
            for number in range(10):
                await broker.publish(
                    f"order {number}", topic, tag="paid" if number % 2 else "open", headers={"cups": number}
                )
            await broker.publish("end", topic, tag="end", headers={"cups": 100})
            for _ in range(2):
                await asyncio.wait_for(ends.get(), WAIT_S)

    asyncio.run(publish())

    # One queue and one worker: the last message was handled last.
    assert paid == [f"order {number}" for number in (1, 3, 5, 7, 9)] + ["end"]
    assert large == [f"order {number}" for number in (6, 7, 8, 9)] + ["end"]


def test_an_answer_goes_on_to_the_topic_of_a_publisher(cluster: LocalCluster, new_name: Callable[[], str]) -> None:
    orders, bills = new_name(), new_name()
    router = MinimqRouter(prefix="eu-")
    broker = MinimqBroker(cluster.nameserver, group=new_name(), create_queues=1)
    billed: asyncio.Queue[MinimqMessage] = asyncio.Queue()

    @router.subscriber(orders)
    @router.publisher(bills, tag="bill", headers={"currency": "EUR"})
    async def bill(order: Order) -> MinimqResponse:
        return MinimqResponse({"total": order.cups * 3}, keys=(f"o-{order.number}",))

    @router.subscriber(bills)
    async def note(message: MinimqMessage) -> None:
        await billed.put(message)

    broker.include_router(router)

    async def publish() -> MinimqMessage:
        async with broker:
            await broker.start()
            await broker.publish(Order(number=4, cups=2), f"eu-{orders}", correlation_id="c-4")
            return await asyncio.wait_for(billed.get(), WAIT_S)

    message = asyncio.run(publish())

    raw = message.raw_message
    assert (raw.topic, raw.tag, tuple(raw.keys)) == (f"eu-{bills}", "bill", ("o-4",))
    assert (message.headers, message.correlation_id) == ({"currency": "EUR"}, "c-4")
    assert raw.body == b'{"total":6}'


def test_batches_are_published_and_handled_together(
    cluster: LocalCluster, new_name: Callable[[], str], topic: str
) -> None:
    broker = MinimqBroker(cluster.nameserver, group=new_name(), create_queues=1)
    calls: list[list[str]] = []
    done = asyncio.Event()

    @broker.subscriber(topic, batch=True, batch_size=40)
    async def handle(bodies: list[str]) -> None:
        calls.append(bodies)
        if sum(map(len, calls)) == 100:
            done.set()

    async def publish() -> None:
        async with broker:
            await broker.connect()
            receipts = await broker.publish_batch(*(f"order {number}" for number in range(100)), topic=topic)
            assert len({receipt.message_id for receipt in receipts}) == 100
            await broker.start()
            await asyncio.wait_for(done.wait(), WAIT_S)

    asyncio.run(publish())

    assert list(chain.from_iterable(calls)) == [f"order {number}" for number in range(100)]
    assert max(map(len, calls)) == 40


def test_middlewares_surround_handlers_in_order(cluster: LocalCluster, new_name: Callable[[], str]) -> None:
    topic = new_name()
    steps: list[str] = []
    done = asyncio.Event()

    def noting(name: str) -> type[BaseMiddleware]:
        class Noting(BaseMiddleware):
            async def publish_scope(self, call_next: Callable, cmd: object) -> object:  # type: ignore[override,type-arg]
                steps.append(f"publish {name}")
                return await call_next(cmd)

            async def consume_scope(self, call_next: Callable, msg: object) -> object:  # type: ignore[override,type-arg]
                steps.append(f"begin {name}")
                result = await call_next(msg)
                steps.append(f"end {name}")
                if name == "outer":
                    done.set()
                return result

        return Noting

    broker = MinimqBroker(
        cluster.nameserver, group=new_name(), create_queues=1, middlewares=(noting("outer"), noting("inner"))
    )

    @broker.subscriber(topic)
    async def handle(body: str) -> None:
        steps.append(body)

    async def publish() -> None:
        async with broker:
            await broker.start()
            await broker.publish("handled", topic)
            await asyncio.wait_for(done.wait(), WAIT_S)

    asyncio.run(publish())

    assert steps[:2] == ["publish outer", "publish inner"]
    assert steps[2:] == ["begin outer", "begin inner", "handled", "end inner", "end outer"]


def test_the_extra_brings_the_command_of_faststream() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "faststream", "--version"], capture_output=True, text=True, check=True
    )
    assert "FastStream 0.7" in shown.stdout
