"""Bodies that a schema registry knows, on the page of a message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from minimq import Message, Producer
from minimq.local.local_cluster import LocalCluster
from minimq.schemas import AvroSerializer, JsonSerializer, ProtobufSerializer, SchemaRegistry
from minimq.schemas.framing import prefix_mark
from minimq_cli.console import serving_console
from support.console_visitor import ConsoleVisitor
from support.protobuf_classes import LINE, ORDER
from support.registry_server import RegistryServer, registry_server

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "raw", "type": "bytes"}],
}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as served:
        yield served


@pytest.fixture
def console(cluster: LocalCluster, server: RegistryServer) -> Iterator[ConsoleVisitor]:
    url = server.url.replace("//", "//ann:a%3Ab@")
    with serving_console(cluster.nameserver, "127.0.0.1", 0, interval_s=0.2, registry=url) as served:
        yield ConsoleVisitor(served.address)


def messages_of(registry: SchemaRegistry, topic: str) -> dict[str, tuple[Message, Any]]:
    order = {"id": "o-1", "total": 480, "customer": {"name": "Ann"}, "at": "2026-01-31T08:00:00Z"}
    protobuf = ProtobufSerializer(ORDER, registry)
    avro, headed = AvroSerializer(AVRO, registry), AvroSerializer(AVRO, registry, framing="header")
    value = {"id": "o-1", "raw": b"\xff"}
    shown = {"id": "o-1", "raw": "/w=="}
    return {
        "AVRO schema id": (avro.message(topic, value), shown),
        "AVRO schema GUID": (headed.message(topic, value), shown),
        "PROTOBUF schema id": (protobuf.message(topic, ParseDict(order, ORDER())), order),
        "PROTOBUF schema id ": (ProtobufSerializer(LINE, registry).message(topic, LINE(price=3)), {"price": 3}),
        "JSON schema id": (JsonSerializer('{"type": "object"}', registry).message(topic, {"a": [1]}), {"a": [1]}),
    }


def page_of(console: ConsoleVisitor, producer: Producer, message: Message) -> tuple[str, dict[str, Any]]:
    receipt = producer.send(message)
    queue = receipt.queue
    path = f"/topics/{queue.topic}/messages/{queue.broker_name}/{queue.queue_id}/{receipt.queue_offset}"
    return path, console.data(path)


def test_bodies_are_decoded(cluster: LocalCluster, console: ConsoleVisitor, server: RegistryServer, topic: str) -> None:
    registry = SchemaRegistry(server.url)
    with Producer(cluster.nameserver) as producer:
        for schema, (message, value) in messages_of(registry, topic).items():
            path, page = page_of(console, producer, message)
            assert page["schema"].startswith(schema.strip())
            assert json.loads(page["body"]) == value
            assert f"Decoded by {page['schema']}" in console.get(path).text
            raw = console.data(f"{path}?show=hex")
            assert raw["schema"] == ""
            assert raw["body"].startswith("00000000  ")
    assert server.headers["Authorization"] == "Basic YW5uOmE6Yg=="


def test_a_body_that_cannot_be_decoded_is_shown_as_it_is(
    cluster: LocalCluster, console: ConsoleVisitor, server: RegistryServer, topic: str
) -> None:
    number = server.add("orders-value", json.dumps(AVRO))
    text = server.add("texts-value", 'syntax = "proto3"; message A {}', "PROTOBUF")
    with Producer(cluster.nameserver) as producer:
        for body, reason in (
            (prefix_mark(number) + b"\x7f", "the body does not fit its schema"),
            (prefix_mark(number + 7) + b"\2a", f"the body names schema id {number + 7}, which the schema registry"),
            (prefix_mark(text, [0]) + b"\2a", "has the Protobuf schema as text alone"),
        ):
            path, page = page_of(console, producer, Message(topic, body))
            assert (page["way"], page["schema"]) == ("hex", "")
            assert reason in page["missing"][0]
            assert reason in unescape(console.get(path).text)
        for body in (b'{"a": 1}', b"plain", b"\0\1"):
            _, page = page_of(console, producer, Message(topic, body))
            assert (page["missing"], page["schema"]) == ([], "")
