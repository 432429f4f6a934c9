"""Avro bodies with the mark of a schema registry become columns, each read with the schema that wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from minimq import LocalCluster, Message, Producer
from minimq.errors import InvalidArgument
from minimq.schemas import AvroSerializer, SchemaRegistry
from pyspark_minimq import from_confluent_avro
from pyspark_minimq.confluent_avro import spark_type
from support.registry_server import RegistryServer, registry_server

ID: dict[str, Any] = {"name": "id", "type": "string"}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "cents", "type": "long"}]}
ORDER = {"type": "record", "name": "Order", "namespace": "shop"}
FIELDS = [
    ID,
    {"name": "lines", "type": {"type": "array", "items": LINE}},
    {"name": "first", "type": ["null", "Line"], "default": None},
    {"name": "counts", "type": {"type": "map", "values": "int"}, "default": {}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "default": "\0"},
    {"name": "uid", "type": ["null", {"type": "string", "logicalType": "uuid"}], "default": None},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["new", "old"]}, "default": "new"},
]
OLDER, NEWER = {**ORDER, "fields": FIELDS[:2]}, {**ORDER, "fields": FIELDS}
UID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as served:
        yield served


def test_bodies_of_two_versions_are_rows(
    spark: SparkSession, cluster: LocalCluster, producer: Producer, topic: str, server: RegistryServer
) -> None:
    registry = SchemaRegistry(server.url)
    older, newer = AvroSerializer(OLDER, registry), AvroSerializer(NEWER, registry)
    producer.send(older.message(topic, {"id": "a", "lines": [{"cents": 1}]}))
    full = {"id": "b", "lines": [], "first": {"cents": 7}, "counts": {"x": 1}, "price": Decimal("1.25"), "uid": UID}
    full |= {"at": datetime(2026, 1, 31, 8, tzinfo=UTC), "day": date(2026, 1, 31), "kind": "old"}
    producer.send(newer.message(topic, full))
    producer.send(Message(topic, b"no mark"))

    rows = spark.read.format("minimq").option("nameserver", cluster.nameserver).option("topic", topic).load()
    read = rows.select(from_confluent_avro("body", NEWER, server.url, mode="PERMISSIVE").alias("order"))
    assert read.schema["order"].dataType == spark_type(json.dumps(NEWER))
    found = sorted(
        (row["order"].asDict(recursive=True) for row in read.collect() if row["order"]), key=lambda o: o["id"]
    )
    assert [order["id"] for order in found] == ["a", "b"]
    assert found[0]["lines"] == [{"cents": 1}]
    assert (found[0]["first"], found[0]["counts"], found[0]["kind"]) == (None, {}, "new")
    assert found[1] == full | {"at": datetime(2026, 1, 31, 8), "uid": UID}  # noqa: DTZ001 - as Spark has it
    assert read.filter("order is null").count() == 1

    failing = rows.select(from_confluent_avro("body", NEWER, {"url": server.url}))
    with pytest.raises(PythonException, match=r"MinimqSparkError: a body cannot be read .* is no mark of a schema"):
        failing.collect()
    [bad] = rows.where("body = X'6e6f206d61726b'").collect()
    place = ["topic", "broker_name", "queue_id", "offset"]
    told = f"MinimqSparkError: the body of offset {bad.offset} of queue {topic}/{bad.broker_name}/{bad.queue_id} cannot"
    with pytest.raises(PythonException, match=told):
        rows.select(from_confluent_avro("body", NEWER, server.url, place=place)).collect()
    good = rows.where("body <> X'6e6f206d61726b'").select(from_confluent_avro("body", NEWER, server.url, place=place))
    assert good.count() == 2


def test_without_a_registry_the_mark_is_stripped(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(bytearray(b"\0\0\0\0\7\2a"),), (None,)], "body binary")
    schema = {**ORDER, "fields": [ID]}
    rows = frame.select(from_confluent_avro(frame.body, json.dumps(schema)).alias("order")).collect()
    assert [row["order"] and row["order"]["id"] for row in rows] == ["a", None]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (["string", "int"], "union of 2 types"),
        ({"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}, "contains itself"),
        ({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "number"}]}, "no Avro schema"),
    ],
)
def test_schemas_without_a_type_are_rejected(schema: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        from_confluent_avro("body", schema)
    with pytest.raises(InvalidArgument, match="mode is"):
        from_confluent_avro("body", NEWER, mode="DROPMALFORMED")  # type: ignore[arg-type]


def record(name: str, *fields: tuple[str, Any], **more: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields], **more}


@pytest.mark.parametrize(
    ("schema", "ddl"),
    [
        (
            record("Order", ("o", record("Order", ("x", "int"), namespace="com.b")), namespace="com.a"),
            "struct<o:struct<x:int>>",
        ),
        (record("com.a.Order", ("o", record("com.b.Order", ("x", "int")))), "struct<o:struct<x:int>>"),
        (
            record("Top", ("a", record("Address", ("s", "string"))), ("b", "com.acme.Address"), namespace="com.acme"),
            "struct<a:struct<s:string>,b:struct<s:string>>",
        ),
        (
            record(
                "Top",
                ("m", record("Money", ("cents", "long"), namespace="com.a")),
                ("n", record("Money", ("units", "string"), namespace="com.b")),
                ("z", "Money"),
                namespace="com.a",
            ),
            "struct<m:struct<cents:bigint>,n:struct<units:string>,z:struct<cents:bigint>>",
        ),
        (
            record(
                "Top",
                ("in", record("b.In", ("k", {"type": "enum", "name": "Kind", "symbols": ["A"]}), ("again", "Kind"))),
                ("k", {"type": "array", "items": "b.Kind"}),
                namespace="a",
            ),
            "struct<in:struct<k:string,again:string>,k:array<string>>",
        ),
        (record("Top", ("day", {"type": "string", "logicalType": "date"})), "struct<day:string>"),
    ],
)
def test_names_are_resolved_within_their_namespace(schema: Any, ddl: str) -> None:
    assert spark_type(json.dumps(schema)).simpleString() == ddl


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}, "decimal of 40 digits: 38 at most"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "'timestamp-nanos' of 'long' is not decoded"),
        ({"type": "fixed", "size": 12, "name": "D", "logicalType": "duration"}, "'duration' of 'fixed' is not decoded"),
        ({"type": "fixed", "size": 16, "name": "U", "logicalType": "uuid"}, "'uuid' of 'fixed' is not decoded"),
    ],
)
def test_logical_types_that_are_not_decoded_are_rejected(kind: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        spark_type(json.dumps(record("Top", ("v", kind))))


@pytest.mark.parametrize(
    ("registry", "told"),
    [
        ({"adress": "http://127.0.0.1:8081"}, "unexpected keyword argument 'adress'"),
        ({"timeout_s": 1}, "required positional argument: 'url'"),
        ({"url": "http://127.0.0.1:8081", "bearer_token": lambda: "token"}, "not JSON serializable"),
        (SchemaRegistry("http://127.0.0.1:8081"), "registry takes a URL, or the arguments"),
    ],
)
def test_wrong_arguments_of_the_registry_are_rejected(registry: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        from_confluent_avro("body", NEWER, registry)
