"""Bodies are marked as Confluent's clients mark them, and a schema registry that fails or lies does no harm."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.avro import AvroSerializer as TheirAvro
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer as TheirProtobuf
from confluent_kafka.serialization import MessageField, SerializationContext

from minimq import Message
from minimq.errors import AccessDenied, InvalidArgument, MalformedBody, MinimqError, NotAuthenticated, Unavailable
from minimq.local.certificate_authority import CertificateAuthority
from minimq.schemas import (
    AvroSerializer,
    JsonSerializer,
    MsgspecSerializer,
    ProtobufSerializer,
    Schema,
    SchemaMissing,
    SchemaRegistry,
    Serializer,
)
from minimq.schemas.framing import header_mark, prefix_mark, read_header, read_prefix
from minimq.schemas.serializer import Framing
from support.cases import for_each
from support.protobuf_classes import LINE, ORDER, REFUND
from support.registry_server import RegistryServer, registry_server

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
JSON = {"title": "Order", "type": "object", "properties": {"id": {"type": "string"}, "price": {"type": "number"}}}
STRATEGY = {"subject.name.strategy.type": "TOPIC"}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as served:
        yield served


@pytest.fixture
def registry(server: RegistryServer) -> SchemaRegistry:
    return SchemaRegistry(server.url)


@pytest.fixture
def theirs(server: RegistryServer) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": server.url}) as client:
        yield client


Make = Callable[[SchemaRegistry, Any], Serializer[Any]]
MakeTheirs = Callable[[SchemaRegistryClient, dict[str, Any]], Any]
FORMATS: list[tuple[str, Make, MakeTheirs, Any]] = [
    (
        "avro",
        lambda registry, framing: AvroSerializer(AVRO, registry, framing=framing),
        lambda client, conf: TheirAvro(client, json.dumps(AVRO), conf=conf),
        {"id": "é"},
    ),
    (
        "json",
        lambda registry, framing: JsonSerializer(JSON, registry, framing=framing),
        lambda client, conf: JSONSerializer(json.dumps(JSON), client, conf=conf),
        {"id": "é", "price": 1.5},
    ),
    *(
        (
            f"protobuf {kind.DESCRIPTOR.full_name}",
            lambda registry, framing, kind=kind: ProtobufSerializer(kind, registry, framing=framing),
            lambda client, conf, kind=kind: TheirProtobuf(kind, client, conf=conf),
            value,
        )
        for kind, value in [(ORDER, ORDER(id="é", total=7)), (LINE, LINE(price=7)), (REFUND, REFUND(id="é"))]
    ),
]


@pytest.mark.parametrize(
    ("make", "make_theirs", "value"), [case[1:] for case in FORMATS], ids=[case[0] for case in FORMATS]
)
@pytest.mark.parametrize("framing", ["prefix", "header"])
def test_bytes_are_those_of_confluents_client(
    server: RegistryServer,
    registry: SchemaRegistry,
    theirs: SchemaRegistryClient,
    framing: Framing,
    make: Make,
    make_theirs: MakeTheirs,
    value: object,
) -> None:
    place = prefix_schema_id_serializer if framing == "prefix" else header_schema_id_serializer
    headers: list[tuple[str, str | bytes | None]] = []
    their_body = make_theirs(theirs, {**STRATEGY, "schema.id.serializer": place})(
        value, SerializationContext("orders", MessageField.VALUE, headers)
    )
    stored = (list(server.schemas), dict(server.subjects))

    ours = make(registry, framing)
    message = ours.message("orders", value)

    assert message.body == their_body
    assert [(name, bytes.fromhex(text)) for name, text in message.properties.items()] == headers
    assert (server.schemas, server.subjects) == stored  # ours asked for the same schemas and subjects
    assert ours.value(message) == value


@pytest.mark.parametrize("framing", ["prefix", "header"])
def test_confluents_client_reads_what_ours_writes(
    registry: SchemaRegistry, theirs: SchemaRegistryClient, framing: Framing
) -> None:
    readers: list[tuple[Serializer[Any], Any, Any]] = [
        (AvroSerializer(AVRO, registry, framing=framing), AvroDeserializer(theirs, conf=STRATEGY), {"id": "order 17"}),
        (
            JsonSerializer(JSON, registry, framing=framing),
            JSONDeserializer(None, schema_registry_client=theirs, conf=STRATEGY),
            {"id": "a"},
        ),
        (
            ProtobufSerializer(LINE, registry, framing=framing),
            ProtobufDeserializer(LINE, conf=STRATEGY, schema_registry_client=theirs),
            LINE(price=7),
        ),
    ]
    for number, (serializer, reader, value) in enumerate(readers):
        message = serializer.message(f"orders-{number}", value)
        headers: list[tuple[str, str | bytes | None]] = [
            (name, bytes.fromhex(text)) for name, text in message.properties.items()
        ]
        assert reader(message.body, SerializationContext(message.topic, MessageField.VALUE, headers)) == value


def test_a_schema_is_asked_for_once(server: RegistryServer, registry: SchemaRegistry) -> None:
    serializer = AvroSerializer(AVRO, registry)
    reader = AvroSerializer(registry=registry)
    for _ in range(3):
        message = serializer.message("orders", {"id": "a"})
        assert reader.value(message) == {"id": "a"}
    assert server.asked == ["POST /subjects/orders-value/versions", "GET /schemas/ids/100001"]
    again = AvroSerializer(AVRO, registry, subject=lambda topic: f"{topic}/of a shop")
    again.message("orders", {"id": "a"})
    assert server.asked[2:] == ["POST /subjects/orders%2Fof%20a%20shop/versions"]


def test_a_body_of_another_version_becomes_a_value_of_the_own_one(registry: SchemaRegistry) -> None:
    fields: list[dict[str, Any]] = [{"name": "total", "type": "int"}, {"name": "id", "type": "string"}]
    older = AvroSerializer({**AVRO, "fields": fields}, registry)
    newer = AvroSerializer(
        {**AVRO, "fields": [fields[1], {"name": "region", "type": "string", "default": "eu"}]}, registry
    )
    assert newer.value(older.message("orders", {"id": "a", "total": 7})) == {"id": "a", "region": "eu"}


def test_schemas_that_refer_to_others_are_read(server: RegistryServer, registry: SchemaRegistry) -> None:
    line = {"type": "record", "name": "shop.Line", "fields": [{"name": "price", "type": "int"}]}
    server.add("line", json.dumps(line))
    order = {"type": "record", "name": "shop.Order", "fields": [{"name": "line", "type": "shop.Line"}]}
    references = [{"name": "shop.Line", "subject": "line", "version": 1}]
    number = server.add("orders-value", json.dumps(order), references=references)
    assert AvroSerializer(registry=registry).value(Message("orders", prefix_mark(number) + b"\x0e")) == {
        "line": {"price": 7}
    }

    server.add("id", '{"type": "string"}', "JSON")
    text = json.dumps({"properties": {"id": {"$ref": "id.json"}}})
    number = server.add("json", text, "JSON", [{"name": "id.json", "subject": "id", "version": 1}])
    reader = JsonSerializer(registry=registry)
    assert reader.value(Message("orders", prefix_mark(number) + b'{"id":"a"}')) == {"id": "a"}
    with pytest.raises(MalformedBody, match=r"at `\$.id`"):
        reader.value(Message("orders", prefix_mark(number) + b'{"id":1}'))


def test_no_schema_has_others_fetched_from_elsewhere(server: RegistryServer, registry: SchemaRegistry) -> None:
    text = json.dumps({"$ref": f"{server.url}/schemas/ids/1"})
    number = server.add("json", text, "JSON")
    with pytest.raises(MalformedBody, match="Unresolvable"):
        JsonSerializer(registry=registry).value(Message("orders", prefix_mark(number) + b"{}"))
    assert server.asked == [f"GET /schemas/ids/{number}"]


def test_credentials_are_sent(server: RegistryServer) -> None:
    tokens = iter(["one", "two"])
    for options, expected in [
        ({"basic_auth": ("ann", "secret:1")}, "Basic " + base64.b64encode(b"ann:secret:1").decode()),
        ({"basic_auth": ["änn", "€"]}, "Basic " + base64.b64encode("änn:€".encode()).decode()),
        ({"bearer_token": "token"}, "Bearer token"),
        ({"bearer_token": lambda: next(tokens)}, "Bearer one"),
    ]:
        registry = SchemaRegistry(server.url, **options)  # type: ignore[arg-type]
        registry.register("orders-value", Schema(json.dumps(AVRO)))
        assert server.headers["Authorization"] == expected


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, NotAuthenticated),
        (403, AccessDenied),
        (404, SchemaMissing),
        (409, InvalidArgument),
        (422, InvalidArgument),
    ],
)
def test_rejections_say_what_the_registry_says(
    server: RegistryServer, registry: SchemaRegistry, status: int, error: type[MinimqError]
) -> None:
    server.rejection = (status, "field 'id' is not optional")
    with pytest.raises(error, match=rf"answers {status} to /subjects/orders-value/versions: .*is not optional"):
        AvroSerializer(AVRO, registry).message("orders", {"id": "a"})
    assert server.schemas == []


def test_a_redirect_is_not_followed(server: RegistryServer) -> None:
    with registry_server() as other:
        server.failures, server.more_headers = [307], {"Location": f"{other.url}/schemas/ids/1"}
        registry = SchemaRegistry(server.url, basic_auth=("ann", "secret"))
        with pytest.raises(InvalidArgument, match="answers 307"):
            registry.schema(1)
        assert other.asked == []  # the credentials are not for others


def test_a_schema_that_may_not_be_registered_has_to_be_there(server: RegistryServer, registry: SchemaRegistry) -> None:
    reader = AvroSerializer(AVRO, registry, register=False)
    with pytest.raises(SchemaMissing):
        reader.message("orders", {"id": "a"})
    number = server.add("orders-value", json.dumps(AVRO))
    assert reader.message("orders", {"id": "a"}).body[:5] == prefix_mark(number)


def test_a_registry_that_fails_for_a_moment_is_asked_again(
    server: RegistryServer, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.failures = [503, 429]
    AvroSerializer(AVRO, registry).message("orders", {"id": "a"})
    assert len(server.asked) == 3
    server.failures, now = [503] * 4, time.monotonic()
    for _ in range(100):  # it is not asked for each message
        with pytest.raises(Unavailable, match="answers 503"):
            registry.schema(1)
    assert len(server.asked) == 7
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    registry.schema(100_001)


def test_a_registry_that_is_offline_or_is_none(server: RegistryServer, registry: SchemaRegistry) -> None:
    server.raw = b"<html>"
    with pytest.raises(Unavailable, match="does not answer as a schema registry does"):
        registry.schema(1)
    server.raw = b"{}"
    with pytest.raises(Unavailable, match="is no schema registry"):
        registry.schema(2)
    server.raw = b'{"schema": "' + b"x" * (5 << 20) + b'"}'
    with pytest.raises(InvalidArgument, match="more than 4194304 bytes"):
        registry.schema(1)
    server.has_guids, server.raw = False, None
    with pytest.raises(InvalidArgument, match="gives schemas no GUID: use framing='prefix'"):
        AvroSerializer(AVRO, registry, framing="header").message("orders", {"id": "a"})
    server.has_guids, server.raw = True, b'{"else": ' + b"[" * 100_000
    with pytest.raises(Unavailable, match="does not answer as a schema registry does"):
        registry.schema(3)
    nobody = SchemaRegistry("http://127.0.0.1:1", timeout_s=1.0)
    with pytest.raises(Unavailable, match=r"schema registry http://127.0.0.1:1 does not answer"):
        nobody.schema(1)


@for_each(
    "arguments",
    [
        {"url": "127.0.0.1:8081"},
        {"url": "http://ann:secret@127.0.0.1:8081"},
        {"url": "http://127.0.0.1", "timeout_s": 0.0},
        {"url": "http://127.0.0.1", "basic_auth": ("a", "b"), "bearer_token": "c"},
        {"url": "http://127.0.0.1", "basic_auth": "ann:secret"},
        {"url": "http://127.0.0.1", "basic_auth": ("ann:b", "secret")},
        {"url": "http://127.0.0.1:99999"},
        {"url": "http://127.0.0.1/?a=b"},
        {"url": "https://127.0.0.1", "ca_file": "/no/such/file"},
        {"url": "https://127.0.0.1", "certificate_file": "/no/such/file"},
        {"url": "https://127.0.0.1", "certificate_file": __file__},
        {"url": "https://127.0.0.1", "key_file": "/no/such/file"},
    ],
)
def test_wrong_arguments_are_rejected(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        SchemaRegistry(**arguments)
    with pytest.raises(InvalidArgument, match="give a SchemaRegistry"):
        AvroSerializer(AVRO, "http://127.0.0.1:8081")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="'prefix' or 'header'"):
        AvroSerializer(AVRO, framing="both")  # type: ignore[arg-type]


def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.init(["127.0.0.1"], [])
    roots, certificate, key = (str(authority.server / name) for name in ("ca.crt", "tls.crt", "tls.key"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=roots)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    with registry_server(context) as served:
        number = served.add("orders-value", json.dumps(AVRO))
        nobody = SchemaRegistry(served.url, ca_file=roots)
        with pytest.raises(Unavailable):
            nobody.schema(number)
        known = SchemaRegistry(served.url, ca_file=roots, certificate_file=certificate, key_file=key)
        assert known.schema(number).schema_id == number


def test_the_proxies_of_the_environment_are_asked(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    number = server.add("orders-value", json.dumps(AVRO))
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//ann:a%3Ab@"))
    registry = SchemaRegistry("http://registry.invalid:8081")
    assert registry.schema(number).schema_id == number  # the server looks at paths alone, so it is a proxy as well
    assert server.headers["Host"] == "registry.invalid:8081"
    assert base64.b64decode(server.headers["Proxy-Authorization"].partition(" ")[2]) == b"ann:a:b"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert SchemaRegistry(server.url).schema(number).schema_id == number


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "the body is empty: a tombstone"),
        (b"{}", "begins with 7b7d, which is no mark of a schema"),
        (b"\0\0\0\1", "no mark of a schema"),
        (b"\1" + bytes(15), "no mark of a schema"),
        (b"\0\xff\xff\xff\xff\0", "schema id 4294967295, which no registry gives"),
        (b"\0\0\0\0\1", "message indexes in the mark of the schema do not end"),
        (b"\0\0\0\0\1\xff\xff\xff\xff\xff", "do not end"),
        (b"\0\0\0\0\1\xfe\xff\xff\x7f", "message indexes; there may be"),
        (b"\0\0\0\0\1\1", "has -1 message indexes"),
        (b"\0\0\0\0\1\2\xff\xff\x7f", "has message index -"),
        (b"\0\0\0\0\1\4\0", "do not end"),
        (b"\0\0\0\0\1\2\2", r"is message \[1\] of its Protobuf file"),
    ],
)
def test_hostile_marks_are_rejected(registry: SchemaRegistry, server: RegistryServer, body: bytes, told: str) -> None:
    with pytest.raises(MalformedBody, match=told):
        ProtobufSerializer(ORDER, registry).value(Message("orders", body))
    assert server.asked == []


def test_marks_come_back() -> None:
    for indexes in [(), (0,), (1,), (0, 0), (3, 200, 10_000)]:
        mark = read_prefix(prefix_mark(7, indexes) + b"rest", has_indexes=bool(indexes))
        assert (mark.schema_id, mark.indexes) == (7, indexes)
        guid = uuid4()
        mark = read_header(header_mark(guid, indexes), has_indexes=bool(indexes))
        assert (mark.schema_id, mark.indexes, mark.start) == (guid, indexes, 0)
    for text in ("", "zz", "00" * 17, "01" * 16, "01" * 10_000):
        with pytest.raises(MalformedBody, match="no mark of a schema"):
            read_header(text, has_indexes=False)
    with pytest.raises(InvalidArgument):
        prefix_mark(1 << 31)


def test_a_guid_before_the_body_is_read_too(server: RegistryServer, registry: SchemaRegistry) -> None:
    number = server.add("orders-value", json.dumps(AVRO))
    guid = registry.schema(number).guid
    assert isinstance(guid, UUID)
    assert AvroSerializer(registry=registry).value(Message("orders", b"\1" + guid.bytes + b"\2a")) == {"id": "a"}
    with pytest.raises(MalformedBody, match="cannot be read: the schema is of kind JSON"):
        AvroSerializer(registry=registry).value(
            Message("orders", prefix_mark(server.add("json", "{}", "JSON")) + b"{}")
        )
    broken = server.add("broken", '{"type": "nothing"}', "JSON")
    serializer, message = JsonSerializer(registry=registry), Message("orders", prefix_mark(broken) + b"{}")
    server.failures = [400]
    with pytest.raises(InvalidArgument, match="400"):  # the registry is at fault, not the body
        serializer.value(message)
    with pytest.raises(MalformedBody, match="cannot be read: this is no JSON Schema"):
        serializer.value(message)


def test_a_type_is_registered_with_its_json_schema(server: RegistryServer, registry: SchemaRegistry) -> None:
    MsgspecSerializer(dict[str, int], registry).message("counts", {"a": 1})
    assert json.loads(str(server.schemas[0]["schema"])) == {
        "type": "object",
        "additionalProperties": {"type": "integer"},
    }
    assert registry.version("counts-value").schema_id == registry.version("counts-value", 1).schema_id == 100_001
