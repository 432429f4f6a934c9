"""The broker in memory, the AsyncAPI document and FastAPI: no server runs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faststream
import httpx
import pytest
from fastapi import FastAPI
from faststream import FastStream
from faststream._internal.parser import DefaultCodec
from faststream.specification import AsyncAPI
from pydantic import BaseModel, ValidationError

from faststream_minimq import MinimqBroker, MinimqMessage, MinimqResponse, MinimqRouter, TestMinimqBroker
from faststream_minimq.fastapi import MinimqRouter as StreamRouter
from minimq import errors


class Order(BaseModel):
    """An order of a customer."""

    number: int
    cups: int = 1


def test_what_is_published_in_memory_is_handled_before_publish_returns() -> None:
    broker = MinimqBroker(group="billing")
    bills = broker.publisher("bills", tag="bill")

    @broker.subscriber("orders", tags="paid")
    @bills
    async def bill(order: Order) -> dict[str, int]:
        return {"total": order.cups * 3}

    async def publish() -> None:
        async with TestMinimqBroker(broker) as memory:
            await memory.publish({"number": 1, "cups": 2}, "orders", tag="open")
            bill.mock.assert_not_called()
            await memory.publish({"number": 2, "cups": 2}, "orders", tag="paid")
            bill.mock.assert_called_once_with({"number": 2, "cups": 2})
            bills.mock.assert_called_once_with({"total": 6})
            with pytest.raises(ValidationError):
                await memory.publish({"number": "none"}, "orders", tag="paid")

    asyncio.run(publish())


def test_one_subscriber_of_each_group_handles_a_message_in_memory() -> None:
    broker = MinimqBroker(group="billing")
    seen: list[str] = []

    @broker.subscriber("orders", where="cups > 5")
    async def first(body: str) -> None:
        seen.append("first")

    @broker.subscriber("orders", where="cups > 5")
    async def second(body: str) -> None:
        seen.append("second")

    @broker.subscriber("orders", group="audit", where="cups > 5")
    async def third(body: str) -> None:
        seen.append("third")

    async def publish() -> None:
        async with TestMinimqBroker(broker) as memory:
            await memory.publish("small", "orders", headers={"cups": 1})
            await memory.publish("large", "orders", headers={"cups": 10})

    asyncio.run(publish())

    # Which one of a group is left open, as on a cluster.
    assert len(seen) == 2
    assert "third" in seen


def test_a_batch_is_handled_together_in_memory() -> None:
    broker = MinimqBroker(group="billing")
    calls: list[list[int]] = []

    @broker.subscriber("orders", batch=True, batch_size=3)
    async def handle(numbers: list[int], message: MinimqMessage) -> None:
        assert len(message.raw_message) == len(message.batch_headers) == len(numbers)
        calls.append(numbers)

    async def publish() -> None:
        async with TestMinimqBroker(broker) as memory:
            await memory.publish_batch(*range(7), topic="orders")

    asyncio.run(publish())

    assert calls == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_request_is_answered_in_memory() -> None:
    broker = MinimqBroker(group="billing")

    @broker.subscriber("orders")
    async def handle(order: Order) -> MinimqResponse:
        if order.number == 404:
            return MinimqResponse(error="no such order")
        return MinimqResponse({"total": order.cups * 3}, headers={"currency": "EUR"})

    async def ask() -> MinimqMessage:
        async with TestMinimqBroker(broker) as memory:
            with pytest.raises(errors.RequestFailed, match="no such order"):
                await memory.request({"number": 404}, "orders")
            return await memory.request({"number": 1, "cups": 2}, "orders")

    reply = asyncio.run(ask())

    assert json.loads(reply.body) == {"total": 6}
    assert reply.headers == {"currency": "EUR"}


class Marking(DefaultCodec):
    """A codec that encodes a batch as a whole."""

    async def encode_batch(self, msgs: Sequence[Any], serializer: Any = None) -> list[tuple[bytes, str | None]]:
        return [(f"{number}:{each}".encode(), "text/plain") for number, each in enumerate(msgs)]

    async def decode_batch(self, msg: Any) -> list[Any]:
        return [body.decode() for body in msg.body]


def test_a_codec_encodes_a_batch_as_a_whole() -> None:
    broker = MinimqBroker(group="billing", codec=Marking())

    @broker.subscriber("orders", batch=True)
    async def handle(bodies: list[str]) -> None: ...

    async def publish() -> None:
        async with TestMinimqBroker(broker) as memory:
            await memory.publish_batch("a", "b", topic="orders")
            handle.mock.assert_called_once_with(["0:a", "1:b"])

    asyncio.run(publish())


def _arguments(path: str, name: str) -> set[str]:
    source = (Path(faststream.__file__).parent / path).read_text("utf-8")  # other brokers need clients of theirs
    [made] = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.ClassDef) and each.name == name]
    inits = [each for each in made.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    return {argument.arg for each in inits for argument in (*each.args.args, *each.args.kwonlyargs)}


@pytest.mark.parametrize(("own", "part"), [(MinimqBroker, "broker"), (MinimqRouter, "router")])
def test_arguments_that_other_brokers_have_in_common_are_accepted(own: type, part: str) -> None:
    kinds = ("kafka", "nats", "rabbit")
    common = set.intersection(
        *(_arguments(f"{kind}/broker/{part}.py", f"{kind.title()}{part.title()}") for kind in kinds)
    )
    assert len(common) > 8
    assert common - {"self"} <= inspect.signature(own).parameters.keys()


def test_the_document_has_the_given_protocol_and_addresses() -> None:
    broker = MinimqBroker(specification_url=["one:9876", "two:9876"], protocol="custom", protocol_version="1.1.1")
    servers = FastStream(broker).schema.to_specification().to_jsonable()["servers"].values()
    assert {server["host"] for server in servers} == {"one:9876", "two:9876"}
    assert {(server["protocol"], server["protocolVersion"]) for server in servers} == {("custom", "1.1.1")}


def test_the_document_lists_topics_and_types() -> None:
    broker = MinimqBroker("mq.example:9876", group="billing")
    router = MinimqRouter(prefix="eu-")

    @router.subscriber("orders", description="Bills an order.")
    @router.publisher("bills", title="Bills")
    async def bill(order: Order) -> Order:
        return order

    @router.subscriber("secrets", include_in_schema=False)
    async def keep(body: str) -> None: ...

    broker.include_router(router)
    app = FastStream(broker, specification=AsyncAPI(title="Billing", version="1.2"))

    document = app.schema.to_specification().to_jsonable()

    assert document["info"]["title"] == "Billing"
    [server] = document["servers"].values()
    assert (server["host"], server["protocol"]) == ("mq.example:9876", "minimq")
    assert {channel["address"] for channel in document["channels"].values()} == {"eu-orders", "eu-bills"}
    assert {operation["action"] for operation in document["operations"].values()} == {"receive", "send"}
    assert document["components"]["schemas"]["Order"]["description"] == "An order of a customer."


def test_an_application_of_fastapi_starts_and_stops_the_broker() -> None:
    router = StreamRouter(group="billing")
    seen: list[int] = []

    @router.subscriber("orders")
    async def handle(order: Order) -> None:
        seen.append(order.number)

    @router.post("/orders")
    async def order(order: Order) -> str:
        await router.broker.publish(order, "orders")
        return "ordered"

    app = FastAPI()
    app.include_router(router)

    async def visit() -> tuple[int, str, int]:
        async with (
            TestMinimqBroker(router.broker),
            router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
        ):
            answer = await client.post("/orders", json={"number": 5})
            return answer.status_code, answer.json(), (await client.get("/asyncapi")).status_code

    assert asyncio.run(visit()) == (200, "ordered", 200)
    assert seen == [5]


def test_an_unknown_argument_is_rejected() -> None:
    with pytest.raises(TypeError, match="has no argument workers"):
        MinimqBroker().subscriber("orders", workers=3)  # type: ignore[call-arg]
    with pytest.raises(errors.InvalidArgument, match="max_workers is 0"):
        MinimqBroker().subscriber("orders", max_workers=0)
