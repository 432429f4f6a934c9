"""Decodes bodies of every format to plain values, to show them to people."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from minimq.schemas.avro_serializer import AvroSerializer
from minimq.schemas.framing import HasBody, SchemaMark, mark_of
from minimq.schemas.json_serializers import JsonSerializer
from minimq.schemas.registry import Schema, SchemaRegistry, SchemaType, resolved
from minimq.schemas.serializer import KEPT_SCHEMAS, Serializer
from minimq_common.errors import InvalidArgument, MalformedBody

#: Prefix of Protobuf's own files, which registries do not have.
_BUILT_IN = "google/protobuf/"


class PlainValue(NamedTuple):
    """The value of a body, made of dicts, lists, texts and numbers."""

    value: Any
    kind: SchemaType
    mark: SchemaMark


class PlainReader:
    """Decodes bodies that name a schema of a registry. Thread-safe."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._readers: dict[SchemaType, Serializer[Any]] = {
            "AVRO": AvroSerializer(registry=registry),
            "JSON": JsonSerializer(registry=registry),
            "PROTOBUF": _AnyProtobuf(registry),
        }

    def read(self, message: HasBody) -> PlainValue | None:
        """Return the value of a message; None if the body names no schema."""
        try:
            mark = mark_of(message, has_indexes=False)
        except MalformedBody:
            return None
        kind = self._readers["JSON"].written(mark).schema.kind
        return PlainValue(self._readers[kind].value(message), kind, mark)


class _AnyProtobuf(Serializer[Any]):
    """Decodes messages of any type, with the file descriptors of the registry."""

    _has_indexes = True

    def __init__(self, registry: SchemaRegistry) -> None:
        super().__init__(registry)
        self._file_of = lru_cache(KEPT_SCHEMAS)(self._new_file)

    def _schema(self) -> Schema:
        raise InvalidArgument("the serializer only reads")

    def _encode(self, value: Any) -> bytes:
        raise InvalidArgument("the serializer only reads")

    def _decode(self, payload: bytes, mark: SchemaMark | None, indexes: Sequence[int]) -> Any:
        assert mark is not None
        around: FileDescriptor | Descriptor = self._file_of(mark._replace(indexes=(), start=0))
        for index in indexes:
            nested = around.message_types_by_name if isinstance(around, FileDescriptor) else around.nested_types_by_name
            around = list(nested.values())[index]
        assert isinstance(around, Descriptor)
        value = message_factory.GetMessageClass(around)()
        value.ParseFromString(payload)
        return json_format.MessageToDict(value, preserving_proto_field_name=True)

    def _new_file(self, mark: SchemaMark) -> FileDescriptor:
        assert self.registry is not None
        pool = descriptor_pool.DescriptorPool()
        schema = self.written(mark, serialized=True).schema
        for name, imported in resolved(self.registry, schema.references, serialized=True).items():
            _add(pool, imported, name)
        return _add(pool, schema)


def _add(pool: descriptor_pool.DescriptorPool, schema: Schema, name: str = "") -> FileDescriptor:
    try:
        file = FileDescriptorProto.FromString(b64decode(schema.text, validate=True))
    except ValueError:
        raise MalformedBody(
            "the schema registry has the Protobuf schema as text alone: it has to answer ?format=serialized"
        ) from None
    file.name = name or file.name or "schema.proto"
    for imported in file.dependency:
        if imported.startswith(_BUILT_IN):
            _add_built_in(pool, imported)
    pool.Add(file)
    return pool.FindFileByName(file.name)


def _add_built_in(pool: descriptor_pool.DescriptorPool, name: str) -> None:
    import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    file = descriptor_pool.Default().FindFileByName(name)
    for imported in file.dependencies:
        _add_built_in(pool, imported.name)
    pool.AddSerializedFile(file.serialized_pb)
