"""Serializers: values come back as they were, and what does not fit its schema is rejected with its path."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from minimq import Message, Reply
from minimq.errors import InvalidArgument, MalformedBody
from minimq.schemas import (
    AvroSerializer,
    JsonSerializer,
    MsgspecSerializer,
    ProtobufSerializer,
    PydanticSerializer,
    Serializer,
)
from support.cases import for_each
from support.protobuf_classes import GUEST, ORDER

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "lines", "type": {"type": "array", "items": "bytes"}, "default": []},
        {"name": "total", "type": ["null", "int"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["new", "old"]}, "default": "new"},
        {"name": "prices", "type": {"type": "map", "values": "double"}, "default": {}},
    ],
}
JSON = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
    "required": ["id"],
}
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


@dataclass
class Line:
    price: float


class Order(msgspec.Struct):
    id: str
    lines: list[Line] = []


class OrderModel(pydantic.BaseModel):
    id: str
    lines: list[int] = []


@dataclass
class Received:
    """A message as consumers have it."""

    body: bytes
    properties: dict[str, str] = field(default_factory=dict)


MADE: list[tuple[Callable[[], Serializer[Any]], Any]] = [
    (JsonSerializer, {"id": "a", "total": 1.5, "names": ["é"]}),
    (lambda: JsonSerializer(JSON), {"id": "a", "lines": [1]}),
    (lambda: MsgspecSerializer(Order), Order("a", [Line(1.5)])),
    (lambda: MsgspecSerializer(Line), Line(1.5)),
    (lambda: PydanticSerializer(OrderModel), OrderModel(id="a", lines=[1])),
    (lambda: AvroSerializer(AVRO), {"id": "a", "lines": [b"x"], "total": 7, "kind": "old", "prices": {"x": 1.5}}),
    (lambda: AvroSerializer("string"), "text"),
    (lambda: AvroSerializer(NODE), {"next": {"next": None}}),
    (lambda: ProtobufSerializer(ORDER), ORDER(id="a", total=7)),
]


@for_each(("make", "value"), MADE)
def test_a_value_comes_back(make: Callable[[], Serializer[Any]], value: object) -> None:
    serializer = make()
    message = serializer.message("orders", value, tag="paid", keys=["o-1"], properties={"region": "eu"})
    assert (message.topic, message.tag, message.keys, message.properties) == (
        "orders",
        "paid",
        ["o-1"],
        {"region": "eu"},
    )
    assert serializer.value(message) == value
    reply = serializer.reply("orders", value, {"region": "eu"})
    assert isinstance(reply, Reply)
    assert reply.properties == {"region": "eu"}
    assert serializer.value(reply) == value


def test_a_loop_is_not_blocked() -> None:
    async def main() -> object:
        serializer = AvroSerializer(AVRO)
        message = await serializer.message_async("orders", {"id": "a"}, keys=["o-1"])
        assert message.keys == ["o-1"]
        return await serializer.value_async(message)

    assert asyncio.run(main()) == {"id": "a", "lines": [], "total": None, "kind": "new", "prices": {}}


@for_each(
    ("value", "told"),
    [
        ({"id": 1}, "`shop.Order.id` is 1, not string"),
        ({}, "`shop.Order.id` is None, not string"),
        ({"id": "a", "lines": [b"", "text"]}, "`shop.Order.lines` is 'text', not bytes"),
        ({"id": "a", "total": "7"}, "`shop.Order.total` is '7', not int"),
        ({"id": "a", "total": 1 << 40}, "`shop.Order.total` is 1099511627776, not int"),
        ({"id": "a", "kind": "lost"}, "`shop.Order.kind` is 'lost', not shop.Kind"),
        ({"id": "a", "prices": {"x": "y"}}, "`shop.Order.prices` is 'y', not double"),
        (["a"], "`$` is ['a'], not shop.Order"),
        (None, "`$` is None, not shop.Order"),
    ],
)
def test_an_avro_value_that_does_not_fit_is_rejected_with_its_field(value: object, told: str) -> None:
    with pytest.raises(InvalidArgument) as rejected:
        AvroSerializer(AVRO).message("orders", value)
    assert rejected.value.message == f"the value does not fit its schema: {told}"
    with pytest.raises(InvalidArgument, match="ID"):
        AvroSerializer(AVRO).message("orders", {"id": "a", "ID": 1})  # the schema does not have this field


def test_json_that_does_not_fit_is_rejected_with_its_path() -> None:
    strict = JsonSerializer(JSON)
    for value, path in [({}, "$"), ({"id": 1}, "$.id"), ({"id": "a", "lines": [1, "x"]}, "$.lines[1]")]:
        with pytest.raises(InvalidArgument, match="does not fit its schema") as rejected:
            strict.message("orders", value)
        assert rejected.value.message.endswith(f"at `{path}`")
    with pytest.raises(InvalidArgument, match="cannot be written as JSON"):
        JsonSerializer().message("orders", object())
    with pytest.raises(InvalidArgument, match=r"fit Order: .* - at `\$.lines\[0\].price`"):
        MsgspecSerializer(Order).message("orders", Order("a", [Line("x")]))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"fit OrderModel: .* - at `\$.lines\[1\]`"):
        PydanticSerializer(OrderModel).message("orders", OrderModel.model_construct(id="a", lines=[1, "x"]))
    with pytest.raises(InvalidArgument, match="give OrderModel"):
        PydanticSerializer(OrderModel).message("orders", {"id": "a"})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"fit int \| str: Expected `int \| str`, got `float`"):
        MsgspecSerializer(int | str).message("orders", 1.5)  # type: ignore[arg-type] # its error names the union
    with pytest.raises(InvalidArgument, match=r"`\$.name` is missing"):
        ProtobufSerializer(GUEST).message("orders", GUEST())
    with pytest.raises(InvalidArgument, match=r"give shop.Order"):
        ProtobufSerializer(ORDER).message("orders", {"id": "a"})


@pytest.mark.parametrize("schema", [{"$ref": "#/definitions/none"}, {"$ref": "#"}])
def test_a_json_schema_that_cannot_be_applied_rejects_every_value(schema: dict[str, Any]) -> None:
    serializer = JsonSerializer(schema)
    with pytest.raises(InvalidArgument, match="cannot be checked by its JSON Schema"):
        serializer.message("orders", "a")
    with pytest.raises(MalformedBody):
        serializer.value(Received(b'"a"'))


@pytest.mark.parametrize("price", ["1.255", "NaN", "123456.00"])
def test_a_decimal_that_the_schema_cannot_hold_is_rejected(price: str) -> None:
    serializer = AvroSerializer({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})
    with pytest.raises(InvalidArgument, match="the value does not fit its schema: "):
        serializer.message("orders", Decimal(price))


def test_a_model_with_aliases_is_written_as_its_schema_says() -> None:
    class Aliased(pydantic.BaseModel):
        order_id: str = pydantic.Field(alias="orderId")

    serializer = PydanticSerializer(Aliased)
    message = serializer.message("orders", Aliased(orderId="a"))
    assert message.body == b'{"orderId":"a"}'
    assert serializer.value(message).order_id == "a"
    assert json.loads(serializer._schema().text)["required"] == ["orderId"]


@for_each(
    ("serializer", "body", "told"),
    [
        (JsonSerializer(), b"{", "truncated"),
        (JsonSerializer(), b"[" * 100_000, "nested too deeply"),
        (JsonSerializer(JSON), b"{}", r"'id' is a required property - at `\$`"),
        (MsgspecSerializer(Order), b'{"id": 1}', r"Expected `str`, got `int` - at `\$.id`"),
        (PydanticSerializer(OrderModel), b'{"id": "a", "lines": ["x"]}', r"valid integer.* - at `\$.lines\[0\]`"),
        (AvroSerializer(AVRO), b"", "does not fit its schema: EOFError"),
        (AvroSerializer(AVRO), b"\x02a", "does not fit its schema"),
        (AvroSerializer("string"), b"\x02aa", "has 1 bytes after its value"),
        (AvroSerializer("string"), b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", "does not fit its schema"),
        (
            AvroSerializer({"type": "array", "items": "long"}),
            b"\xfe\xff\xff\xff\xff\xff\xff\x7f\2",
            "does not fit its schema",
        ),
        (AvroSerializer(NODE), b"\2" * 1_000_000, "nested too deeply"),
        (ProtobufSerializer(ORDER), b"\xff\xff", "no shop.Order"),
    ],
)
def test_a_body_that_does_not_fit_is_malformed(serializer: Serializer[Any], body: bytes, told: str) -> None:
    with pytest.raises(MalformedBody, match=told):
        serializer.value(Received(body))


@pytest.mark.parametrize(
    "items", ["null", {"type": "record", "name": "Empty", "fields": []}, {"type": "fixed", "name": "None", "size": 0}]
)
def test_an_avro_array_of_nothing_is_rejected(items: object) -> None:
    # Its body has the number of items and none of them: nine bytes for as many as memory holds.
    with pytest.raises(InvalidArgument, match="takes no bytes"):
        AvroSerializer({"type": "array", "items": items})


def test_defaults_are_values_of_their_type() -> None:
    logical: dict[str, tuple[str, dict[str, Any], Any, Any]] = {
        "day": ("int", {"logicalType": "date"}, 1, date(1970, 1, 2)),
        "at": ("long", {"logicalType": "timestamp-millis"}, 1000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        "price": ("bytes", {"logicalType": "decimal", "precision": 4, "scale": 2}, "\x7d", Decimal("1.25")),
        "raw": ("bytes", {}, "\xff", b"\xff"),
    }
    fields = [{"name": n, "type": {"type": t, **more}, "default": d} for n, (t, more, d, _) in logical.items()]
    serializer = AvroSerializer({"type": "record", "name": "R", "fields": fields})
    assert serializer.value(serializer.message("t", {})) == {name: value for name, (_, _, _, value) in logical.items()}
    with pytest.raises(InvalidArgument, match="no Avro schema"):
        AvroSerializer({"type": "record", "name": "R", "fields": [{**fields[0], "default": "x"}]})


@for_each("schema", ["{", "nothing", {"type": "record"}, {"type": "array"}])
def test_what_is_no_schema_is_rejected(schema: str | dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="no Avro schema"):
        AvroSerializer(schema)
    with pytest.raises(InvalidArgument, match="no JSON Schema"):
        JsonSerializer({"type": "nothing"})
    with pytest.raises(InvalidArgument, match="no class that protoc has generated"):
        ProtobufSerializer(Message)  # type: ignore[type-var]
    with pytest.raises(InvalidArgument, match="no model of pydantic"):
        PydanticSerializer(dict)  # type: ignore[type-var]
    with pytest.raises(InvalidArgument, match="give an Avro schema"):
        AvroSerializer()


def test_a_format_loads_only_what_it_needs() -> None:
    program = (
        "import sys; from minimq.schemas import MsgspecSerializer; MsgspecSerializer(dict);"
        "sys.exit(not {'fastavro', 'pydantic', 'jsonschema'}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
    lacking = "import sys; sys.modules['fastavro'] = None; from minimq.schemas import AvroSerializer"
    done = subprocess.run([sys.executable, "-c", lacking], check=False, timeout=60, capture_output=True, text=True)
    assert "minimq.schemas.AvroSerializer needs fastavro: pip install 'minimq[schemas]'" in done.stderr
